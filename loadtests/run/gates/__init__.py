"""The gates: of the requests, of the run, of the machine, and of what the modes computed."""
