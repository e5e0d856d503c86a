"""How many replicas there are: a number, or two between which Serve scales."""

from __future__ import annotations

import re

import msgspec

MOST = 1000


class ReplicaCount(msgspec.Struct, frozen=True):
    """From `least` to `most` replicas; both are the same where the number is fixed."""

    least: int
    most: int

    @classmethod
    def parse(cls, text: str) -> ReplicaCount:
        """'4', or '1-4'. Raises ValueError for anything else."""
        found = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", text.strip())
        if found is not None:
            count = cls(int(found[1]), int(found[2] or found[1]))
            if 1 <= count.least <= count.most <= MOST:
                return count
        raise ValueError(f"--replicas {text}: give a number from 1 to {MOST}, or two as 1-4")

    @property
    def scales(self) -> bool:
        """Whether Serve chooses the number."""
        return self.least < self.most
