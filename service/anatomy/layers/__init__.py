"""Microseconds of each layer of PyTorch in one operator call."""
