"""Trains and evaluates `tiny`."""
