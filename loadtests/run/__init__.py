"""Runs a plan: the load generator's process, rows, readiness, warm-up, validity gates."""
