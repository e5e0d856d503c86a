"""What a finding says whose times were taken after the profiler had run in the same process."""

from __future__ import annotations

from service.step.profiler_session import profiler_attached

ATTACHED = (
    "the profiler ran in this process before these times were taken, and its library stays attached: the "
    "host may have taken longer to launch since then, most of all to replay a graph; `launchbound anatomy` "
    "runs one study in a process of its own"
)


def attached_note() -> list[str]:
    """ATTACHED where it is true of what is timed from now on; else nothing."""
    return [ATTACHED] if profiler_attached() else []
