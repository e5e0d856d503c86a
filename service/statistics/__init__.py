"""Intervals, the device-bound index, the rule for disturbed measurements. Imports nothing else of ours."""
