"""Tests of merged requests."""
