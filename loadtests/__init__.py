"""Drives the service over HTTP, keeps one row per request, and reports what the rows say."""
