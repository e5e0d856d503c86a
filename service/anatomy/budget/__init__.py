"""Dispatch and kernel over batch sizes."""
