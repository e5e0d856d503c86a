"""One check of a sweep."""

from __future__ import annotations

import msgspec


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """One check. `passed` None: does not apply to this sweep. A `warning` never fails the exit code."""

    name: str
    passed: bool | None
    detail: str
    warning: bool = False

    @property
    def failed(self) -> bool:
        """Whether the sweep is not valid because of this."""
        return self.passed is False and not self.warning


def some(names: list[str], most: int = 3) -> str:
    """The first few of `names`, and whether there are more."""
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")
