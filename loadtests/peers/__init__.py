"""Rivals of the service's modes: other runtimes and other servers, on the same weights, core and prompts."""
