"""Load tests over HTTP: plans, the locust load generator with one row per request, statistics and reports."""
