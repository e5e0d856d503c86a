"""All faults, in the order in which they are run."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.cache_faults import (
    cache_damaged,
    cut,
    engine_killed_compiled,
    libraries,
    pickles,
    scattered,
    terminated_compiling,
)
from tests.chaos.client_faults import beyond_the_cap, crowded
from tests.chaos.disk_faults import cache_full, results_full, traces_full
from tests.chaos.load_faults import LONG_SECONDS, soaked
from tests.chaos.process_faults import (
    anatomy_hit,
    anatomy_hit_at_rest,
    at,
    cache_refused,
    engine_hit,
    engine_killed_with_requests,
    front_killed,
    front_killed_importing,
    front_stopped,
    importing,
    studying,
    terminated,
    writable_by_all,
)
from tests.chaos.victim import ENDED_SECONDS, NOTICED_SECONDS, REPLACED_SECONDS, STAGES, Fault

REPLACED = f"ready again within {REPLACED_SECONDS:.0f} s"
NOTICED = f"noticed within {NOTICED_SECONDS:.0f} s, ready {REPLACED_SECONDS:.0f} s later"
ENDED = f"ended within {ENDED_SECONDS:.0f} s, nothing left"
STUDY_LOST = "503 within 15 s, engine serves"
ALL_READY = "all modes ready, their tokens as before"
SIGNALS = (("killed", signal.SIGKILL), ("stopped", signal.SIGSTOP))


def all_faults(soak_seconds: float) -> list[Fault]:
    return [*_of_engine(), *_of_anatomy(), *_of_front(), *_of_folders(), *_of_clients(soak_seconds)]


def _of_engine() -> Iterator[Fault]:
    for stage in STAGES:
        yield Fault(f"engine killed, {stage}", REPLACED, engine_hit(signal.SIGKILL, at(stage)))
        yield Fault(f"engine stopped, {stage}", NOTICED, engine_hit(signal.SIGSTOP, at(stage)))
    must = f"{REPLACED}, tokens as before"
    yield Fault("engine killed, compiled modes serving", must, engine_killed_compiled)
    yield Fault("engine killed, requests running", "503 within 2 s", engine_killed_with_requests)
    for word, number in SIGNALS:
        must = f"gone within {NOTICED_SECONDS:.0f} s, study answered, ready {REPLACED_SECONDS:.0f} s later"
        yield Fault(f"engine {word}, study", must, engine_hit(number, studying))


def _of_anatomy() -> Iterator[Fault]:
    for word, number in SIGNALS:
        yield Fault(f"anatomy {word}, starting", STUDY_LOST, anatomy_hit(number, importing))
        yield Fault(f"anatomy {word}, study", STUDY_LOST, anatomy_hit(number, studying))
        must = f"gone within {NOTICED_SECONDS:.0f} s, the next study has another"
        yield Fault(f"anatomy {word}, at rest", must, anatomy_hit_at_rest(number))


def _of_front() -> Iterator[Fault]:
    moments = {**{stage: at(stage) for stage in STAGES}, "study": studying}
    serving = moments[STAGES[-1]]
    yield Fault("front killed, its own start", "nothing left", front_killed_importing)
    for name, moment in moments.items():
        yield Fault(f"front killed, {name}", "nothing left", front_killed(moment))
        yield Fault(f"front stopped for 18 s, {name}", "the same engine serves on", front_stopped(moment))
        yield Fault(f"SIGTERM, {name}", ENDED, terminated(moment))
    yield Fault("SIGTERM, compiling", ENDED, terminated_compiling)
    yield Fault("SIGTERM, requests waiting", "all of them served", terminated(serving, requests=24))
    yield Fault("SIGTERM, engine stopped", ENDED, terminated(serving, stopped=True))
    yield Fault("SIGTERM twice, engine stopped", "ended within 2 s", terminated(serving, 2, stopped=True))


def _of_folders() -> Iterator[Fault]:
    yield Fault("disk full under traces and log", "requests answered, traces again with room", traces_full)
    yield Fault("disk full under the compile cache", "eager serves; with room all modes", cache_full)
    yield Fault("disk full under results", "exit code 4, remedy; resumed whole", results_full)
    yield Fault("cache writable by all", "exit code 2, remedy", cache_refused(writable_by_all, "chmod go-w"))
    yield Fault(
        "cache is a file", "exit code 2, remedy", cache_refused(Path.touch, "LAUNCHBOUND_CACHE_FOLDER")
    )
    yield Fault("cached libraries cut", ALL_READY, cache_damaged(libraries, cut))
    yield Fault("cached libraries with bytes changed", ALL_READY, cache_damaged(libraries, scattered))
    yield Fault("cached pickles cut", ALL_READY, cache_damaged(pickles, cut))
    yield Fault("cached pickles with bytes changed", ALL_READY, cache_damaged(pickles, scattered))


def _of_clients(soak_seconds: float) -> Iterator[Fault]:
    yield Fault("slow, half-open and vanishing clients", "honest requests answered, none left", crowded)
    yield Fault("connections above the cap", "probes and scrapes answered within 1 s", beyond_the_cap)
    flat = "descriptors, threads and series flat"
    judged = soak_seconds >= LONG_SECONDS
    yield Fault(
        "soak of mixed load", f"resident memory ≤ +1 %, {flat}" if judged else flat, soaked(soak_seconds)
    )
