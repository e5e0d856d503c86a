"""`launchbound selftest`: measures whether the numbers are right, and says so row by row (`run.main`)."""
