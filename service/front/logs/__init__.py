"""The service's log: who writes to it, in which form, and where it goes."""
