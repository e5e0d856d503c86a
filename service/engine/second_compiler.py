"""A second process that compiles beside the engine.

From an empty compile cache most of a compilation is one thread of Python, so one process leaves the other
cores idle. The engine compiles from the first callable on, the second process from the last one on, until
they meet: each claims a callable before it compiles it. The second process reports as JSON lines how long
each took, and ends with the engine.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Generator, Iterable, Sequence
from math import inf
from pathlib import Path
from time import sleep

import msgspec
import psutil

from service.engine.parts import EngineParts, build_parts
from service.engine.start_times import START
from service.engine.warmup import callable_name, callables_of
from service.machine import physical_cores
from service.modes import MODES
from service.parent_death import owned
from service.records import EngineSettings, Phase
from service.step.compile_cache import has_code, warn
from service.step.process_state import prepare_process, resident_bytes

POLL_SECONDS = 0.05
CHUNK_BYTES = 65536

MEMORY_FACTOR = 3
"""So many times what this process occupies must be free for another one with the same model."""


class Compiled(msgspec.Struct, frozen=True):
    """The callable `name` is in the cache; compiling it took `seconds`. None: it was there already."""

    name: str
    seconds: float | None


class Claims:
    """Which process compiles which of the callables of `modes`: each has a byte of a file, which it locks.

    A lock lasts as long as its process, so what a killed process had claimed can be claimed again.
    """

    def __init__(
        self, file: int, modes: Iterable[str], phases: Sequence[Phase], buckets: Iterable[int]
    ) -> None:
        self._file = file
        callables = callables_of(phases, buckets)
        names = [callable_name(mode, *one) for mode in modes for one in callables]
        self._places = {name: place for place, name in enumerate(names)}

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def claim(self, name: str) -> bool:
        """Whether this process compiles it, from now on."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._places[name])
        except BlockingIOError:
            return False
        return True


class SecondCompiler:
    """The process that compiles `modes` of what the engine was set to, beside it."""

    def __init__(self, settings: EngineSettings, modes: list[str], phases: Sequence[Phase]) -> None:
        chosen = msgspec.json.encode(msgspec.structs.replace(settings, modes=modes)).decode()
        print(f"launchbound engine: a second process helps to compile {', '.join(modes)}", file=sys.stderr)
        self._file = os.memfd_create("claims")
        self._claims = Claims(self._file, modes, phases, settings.batch_sizes)
        command = [sys.executable, "-m", "service.engine.second_compiler", chosen, str(self._file)]
        self._process = subprocess.Popen(owned(command), stdout=subprocess.PIPE, pass_fds=[self._file])
        assert self._process.stdout is not None
        self._lines = self._process.stdout
        os.set_blocking(self._lines.fileno(), False)
        self._rest = b""
        self._told = False
        self._seconds: dict[str, float | None] = {}

    def compiled(self, name: str) -> Generator[None, None, float | None]:
        """Claim the callable `name`, or wait for it, yielding meanwhile: the seconds it took there; None: it
        is to be compiled here.
        """
        while name in self._claims and name not in self._seconds and not self._claims.claim(name):
            self._read()
            with START.phase("second_compiler"):
                sleep(POLL_SECONDS)
            yield
        self._read()  # a process that has ended has let its claims go
        return self._seconds.get(name)

    def close(self) -> None:
        """End it, whatever it is doing: nothing is left for it to compile."""
        if self._process.poll() is None:
            self._told = True  # how it ends is then our doing
            self._process.terminate()
        self._process.wait()
        self._tell_failure()
        self._lines.close()
        os.close(self._file)

    def _read(self) -> None:
        if self._lines.closed:
            self._tell_failure()
            return
        try:
            found = os.read(self._lines.fileno(), CHUNK_BYTES)
        except BlockingIOError:
            return
        *lines, self._rest = (self._rest + found).split(b"\n")
        for line in lines:
            one = msgspec.json.decode(line, type=Compiled)
            self._seconds[one.name] = one.seconds
        if not found:
            self._lines.close()  # its interpreter takes a second or two to end, which nobody waits for

    def _tell_failure(self) -> None:
        if not self._told and (code := self._process.poll()):
            self._told = True
            warn(f"the second compiler ended with code {code}: the engine compiles what it left")


def second_compiler(parts: EngineParts) -> SecondCompiler | None:
    """Start it where it shortens a start and there is room for another copy of the model; else None."""
    settings, loaded = parts.settings, parts.loaded
    modes = _shared(settings.modes)
    cold = not has_code(parts.code)
    cores = min(physical_cores(os.sched_getaffinity(0)), allowed_cpus())
    free = min(psutil.virtual_memory().available, free_memory_bytes())
    room = free > MEMORY_FACTOR * resident_bytes()
    if loaded.device.type != "cpu" or not modes or not cold or cores < 2 or not room:
        return None
    # What the engine chose by timing is part of what is compiled.
    linears = settings.linears if loaded.linears is None else loaded.linears.layout
    chosen = msgspec.structs.replace(settings, device="cpu", linears=linears, discard_compiled=False)
    return SecondCompiler(chosen, modes, parts.workload.kind.phases)


def _shared(modes: Iterable[str]) -> list[str]:
    """Those whose code is kept: packages are, other code with packed weights is not."""
    effects = {name: MODES[name].effect("cpu") for name in modes}
    return [name for name, one in effects.items() if one.package or (one.compile and not one.freezes)]


def main(arguments: list[str]) -> int:
    """Compile what the engine has not claimed, and report each callable; returns the exit code."""
    settings = msgspec.json.decode(arguments[0], type=EngineSettings)
    reports = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library or a compiler prints is no report
    prepare_process(settings.cache_folder, settings.model)
    parts = build_parts(settings, lambda _: None)
    claims = Claims(int(arguments[1]), settings.modes, parts.workload.kind.phases, settings.batch_sizes)
    for name, seconds in parts.warmup.compile(claims.claim):
        print(msgspec.json.encode(Compiled(name, seconds)).decode(), file=reports, flush=True)
    return 0


GROUP = Path("/sys/fs/cgroup")
"""The control group of a container (v2), as it sees it itself."""


def allowed_cpus() -> float:
    """How many CPUs' time the container may use, whatever cores it may run on; infinite without a limit."""
    quota, _, period = _limit("cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdigit() else inf


def free_memory_bytes() -> float:
    """How much memory the container may still take, where its cached files count as taken."""
    most, now = _limit("memory.max"), _limit("memory.current")
    return max(0, int(most) - int(now)) if most.isdigit() and now.isdigit() else inf


def _limit(name: str) -> str:
    """Empty where there is none, as outside of a container."""
    try:
        return (GROUP / name).read_text().strip()
    except OSError:
        return ""


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
