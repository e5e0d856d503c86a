"""What is wrong with a plan."""

from __future__ import annotations


class PlanError(ValueError):
    """A plan that cannot be run; the message names the remedy."""
