"""What `run.json` says of open-loop cells besides their rates: visits that were cut."""

from __future__ import annotations

import msgspec


class CutVisit(msgspec.Struct, frozen=True, kw_only=True):
    """An open-loop visit that ended before its last request, because of `reason`.

    The requests with an index below `sent` were sent; the plan does not owe the others.
    """

    round: int
    cell: str
    sent: int
    reason: str
