"""What a process says of what its main thread does, so that another can tell whether it hangs."""

from __future__ import annotations

import msgspec


class Doing(msgspec.Struct, frozen=True, kw_only=True, tag="doing"):
    """What the engine's main thread does from now on: its next message follows within `limit_seconds`.

    Sent before everything that takes long, and while the engine serves about once a second, between two
    steps. `busy_limit_seconds`: so much CPU time a thread of it uses until then, at most; None where that
    has no bound of its own. `may_wait`: it may meanwhile wait for something beyond this machine, such as a
    download.
    """

    what: str
    limit_seconds: float
    busy_limit_seconds: float | None = None
    may_wait: bool = False


SERVING = "serving"
"""What a `Doing` says that is sent between two steps, and while there is nothing to do."""
