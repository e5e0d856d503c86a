"""The instructions of a step, counted one by one: whose they are, and which of them a mode saves."""
