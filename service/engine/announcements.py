"""What the engine tells the front before it does something that takes long."""

from __future__ import annotations

from collections.abc import Iterator

from service.engine.inbox import Inbox
from service.engine.local_inbox import LocalInbox
from service.engine.warmup import Warmup
from service.records import Doing

PIECE_SECONDS = 1800.0
"""How long one piece of the warm-up may take, such as the compilation of one callable."""

PROFILING = Doing(what="profiling a request", limit_seconds=PIECE_SECONDS)

SLOWER = 4.0
"""A step of a request may take so many times what eager's reference took, which has steps of every batch; its
CPU time as many times that of the reference.
"""


def announced(work: Iterator[None], warmup: Warmup, inbox: Inbox | LocalInbox) -> Iterator[None]:
    """The warm-up's `work`, each piece of it announced: what follows a yield is again a matter of steps."""
    while True:
        inbox.announce(Doing(what=warmup.doing, limit_seconds=PIECE_SECONDS))
        try:
            next(work)
        except StopIteration:
            return
        inbox.expect_steps_of(SLOWER * warmup.reference_seconds, SLOWER * warmup.reference_busy_seconds)
        yield
