"""A compile cache that was damaged between two starts: the real compiler, its libraries and its pickles."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic

import psutil

from tests.chaos.victim import (
    ENDED_SECONDS,
    PATIENCE_SECONDS,
    REPLACED_SECONDS,
    Experiment,
    Happened,
    Setup,
    Victim,
    seconds_until,
    victim,
)
from tests.support.processes import descendants, gone
from tests.support.serving import until

MODES = ("eager", "compiled", "reduce-overhead")
SETUP = Setup(modes=",".join(MODES))
COMPILE_SECONDS = 600.0
HEADER = 4096
"""Bytes at a library's begin, with what the loader looks at first."""

TOKENS = "tokens.json"

Damage = Callable[[Path, random.Random], None]


def cut(file: Path, _: random.Random) -> None:
    """As a disk that was full leaves it."""
    file.write_bytes(file.read_bytes()[:100])


def scattered(file: Path, chance: random.Random) -> None:
    """Some bytes behind the header are others: it may load, and compute something else, or crash."""
    data = bytearray(file.read_bytes())
    for place in chance.choices(range(min(HEADER, len(data) - 1), len(data)), k=max(1, len(data) // 500)):
        data[place] ^= 0xFF
    file.write_bytes(data)


def libraries(cache: Path) -> Iterable[Path]:
    return cache.rglob("*.so")


def pickles(cache: Path) -> Iterator[Path]:
    for folder in ("fxgraph", "aotautograd"):
        yield from (file for file in cache.rglob(f"{folder}/**/*") if file.is_file())


def cache_damaged(which: Callable[[Path], Iterable[Path]], damage: Damage) -> Experiment:
    """A whole service on a cache of which `which` files have `damage`: all modes ready, the same tokens."""

    def run(folder: Path) -> Happened:
        good, tokens = good_cache(folder.parent / "good-cache")
        shutil.copytree(good, folder / "cache", symlinks=True)
        files = sorted(which(folder / "cache"))
        assert files, "nothing of the kind lies in the cache"
        for file in files:
            damage(file, random.Random(file.name))
        began = monotonic()
        with victim(folder, SETUP) as service:
            service.await_ready(COMPILE_SECONDS)
            seconds, restarts = monotonic() - began, service.series()["engine_restarts_total"]
            caches = [mode["cache"] for mode in service.http.get("/v1/modes").json()["modes"]]
            same = outputs(service) == tokens
        words = f"{len(files)} files; {'the same' if same else 'OTHER'} tokens, {restarts:g} restarts, " + (
            "compiled again" if "cold" in caches else "nothing compiled again"
        )
        return Happened(words, seconds, same and restarts <= 1)

    return run


def good_cache(folder: Path) -> tuple[Path, dict[str, object]]:
    """The cache that a cold start of all modes leaves in `folder`, made once; and each mode's tokens."""
    kept = folder / TOKENS
    if not kept.exists():
        folder.mkdir(exist_ok=True)
        with victim(folder, SETUP) as service:
            service.await_ready(COMPILE_SECONDS)
            found = outputs(service)
            service.process.send_signal(signal.SIGTERM)
            service.process.wait(PATIENCE_SECONDS)
        assert all(one == found["eager"] for one in found.values()), "the modes differ already"
        kept.write_text(json.dumps(found))
    return folder / "cache", json.loads(kept.read_text())


def engine_killed_compiled(folder: Path) -> Happened:
    good, tokens = good_cache(folder.parent / "good-cache")
    shutil.copytree(good, folder / "cache", symlinks=True)
    with victim(folder, SETUP) as service:
        service.await_ready(COMPILE_SECONDS)
        pid = service.engine()
        os.kill(pid, signal.SIGKILL)
        seconds = seconds_until(lambda: service.engine() != pid and service.ready(), "another engine")
        same = outputs(service) == tokens
        return Happened(
            f"{'the same' if same else 'OTHER'} tokens", seconds, same and seconds <= REPLACED_SECONDS
        )


def terminated_compiling(folder: Path) -> Happened:
    with victim(folder, SETUP) as service:
        compilers = until(lambda: _compilers(service), "a running compiler", COMPILE_SECONDS)
        left = descendants(service.process.pid)
        service.process.send_signal(signal.SIGTERM)
        began = monotonic()
        code = service.process.wait(PATIENCE_SECONDS)
        seconds = monotonic() - began
        clean = code == 0 and all(map(gone, [*left, *compilers]))
        words = f"exit code {code}, {'nothing' if clean else 'something'} left of {len(left)} processes"
        return Happened(words, seconds, clean and seconds <= ENDED_SECONDS)


def _compilers(service: Victim) -> list[int]:
    found = []
    for pid in descendants(service.process.pid):
        with suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).name() in ("g++", "c++", "cc1plus"):
                found.append(pid)
    return found


def outputs(service: Victim) -> dict[str, object]:
    return {mode: service.generate(mode, max_new_tokens=24).json()["outputs"] for mode in MODES}
