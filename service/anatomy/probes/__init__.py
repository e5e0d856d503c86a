"""Pitfalls, live."""
