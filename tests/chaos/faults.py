"""All faults, in the order in which they are run."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.chaos.engine_faults import (
    anatomy_hit,
    disk_full,
    engine_killed,
    engine_killed_with_a_request,
    engine_stopped,
)
from tests.chaos.fault import ENDED_SECONDS, NOTICED_SECONDS, REPLACED_SECONDS, Fault
from tests.chaos.looping_engine import engine_loops
from tests.chaos.service_faults import (
    cache_refused,
    front_killed,
    front_stopped,
    terminated,
    writable_by_all,
)
from tests.chaos.victim import STAGES

REPLACED = f"ready again within {REPLACED_SECONDS:.0f} s"
NOTICED = f"noticed within {NOTICED_SECONDS:.0f} s, ready {REPLACED_SECONDS:.0f} s later"
ENDED = f"ended within {ENDED_SECONDS:.0f} s, nothing left"

FAULTS = [
    *(Fault(f"engine killed, {stage}", REPLACED, engine_killed(stage)) for stage in STAGES),
    *(Fault(f"engine stopped, {stage}", NOTICED, engine_stopped(stage)) for stage in STAGES),
    Fault("engine in an endless loop, step", "503 within 15 s, replaced", engine_loops),
    Fault("anatomy killed, study", "503 within 15 s, engine serves", anatomy_hit(signal.SIGKILL)),
    Fault("anatomy stopped, study", "503 within 15 s, engine serves", anatomy_hit(signal.SIGSTOP)),
    Fault("engine killed, request running", "503 within 2 s", engine_killed_with_a_request),
    *(Fault(f"front killed, {stage}", "nothing left", front_killed(stage)) for stage in STAGES[2:]),
    Fault("front stopped for 18 s", "the same engine serves on", front_stopped),
    *(Fault(f"SIGTERM, {stage}", ENDED, terminated(stage, 1, stopped=False)) for stage in STAGES),
    Fault("SIGTERM, engine stopped", ENDED, terminated(STAGES[3], 1, stopped=True)),
    Fault("SIGTERM twice, engine stopped", "ended within 2 s", terminated(STAGES[3], 2, stopped=True)),
    Fault("disk full under traces", "requests answered", disk_full),
    Fault("cache writable by all", "exit code 2, remedy", cache_refused(writable_by_all, "chmod go-w")),
    Fault("cache is a file", "exit code 2, remedy", cache_refused(Path.touch, "LAUNCHBOUND_CACHE_FOLDER")),
]
