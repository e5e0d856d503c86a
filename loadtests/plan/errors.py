"""What a plan that cannot be run raises."""

from __future__ import annotations


class PlanError(ValueError):
    """A plan that cannot be run; the message names the remedy."""
