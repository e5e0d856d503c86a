"""`launchbound selftest`: measures whether the service's numbers are right, one row per property."""
