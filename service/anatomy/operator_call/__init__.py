"""One call of one operator: its way through the dispatcher, and the microseconds of each part of it."""
