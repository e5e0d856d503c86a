"""Requests merged into one batch: within a window, or continuously between two steps."""
