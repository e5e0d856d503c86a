"""Modules as users have them, small and of random weights; three more are in `examples/`."""
