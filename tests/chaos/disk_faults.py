"""A disk of a few megabytes that can be full: a tmpfs that only the commands run within it see.

It is mounted in a mount namespace of its own, as root, or in a user namespace where root may not be had, and
goes with the last process in it. A write beyond its size fails with ENOSPC, as on any disk.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import httpx

from loadtests.run.rows import ROWS_FILE
from loadtests.run.run_file import read_run
from service.cli.options import EXIT_MACHINE
from service.parent_death import owned
from tests.chaos.victim import Happened, NotPossible, Setup, Victim, victim
from tests.support.made_plans import read_rows
from tests.support.serving import until

MEGABYTE = 2**20
BLOCK = 4096

_MOUNT = 'mount -t tmpfs -o "size=$2,mode=0700" launchbound "$1" && echo mounted && exec cat'
"""The keeper: as long as its standard input is open, the namespace stays."""


class SmallDisk:
    """The disk, whose folder `at` is only seen `within`; from outside the same files are at `seen`."""

    def __init__(self, at: Path, keeper: int, with_user: bool) -> None:
        self.at = at
        self.seen = Path(f"/proc/{keeper}/root{at}")
        self._filler = self.seen / "filler"
        self._enter = ["nsenter", f"--target={keeper}", "--mount"]
        if with_user:
            self._enter += ["--user", "--preserve-credentials"]

    def within(self, command: list[str]) -> list[str]:
        """The command line that runs `command` where the disk is seen, in this process's working directory.

        It becomes `command`, so that pid and parent stay.
        """
        return [*self._enter, "--", "env", f"--chdir={Path.cwd()}", *command]

    def fill(self, leave_bytes: int = 0) -> None:
        """Write until nothing more fits, then give back `leave_bytes`."""
        with self._filler.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(BLOCK))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
            size = file.tell() // BLOCK * BLOCK
            file.truncate(max(0, size - leave_bytes))

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)


@contextmanager
def small_disk(at: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """A disk at the folder `at`. Raises NotPossible where this user may not mount one."""
    at.mkdir(parents=True, exist_ok=True)
    with_user = os.geteuid() != 0
    options = ["--user", "--map-root-user"] if with_user else []
    missing = [program for program in ("unshare", "nsenter") if shutil.which(program) is None]
    if missing:
        raise NotPossible(f"no small disk here: {', '.join(missing)} missing (util-linux)")
    keeper = subprocess.Popen(
        ["unshare", *options, "--mount", "--", "sh", "-c", _MOUNT, "sh", str(at), str(size_bytes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with keeper:
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        assert keeper.stderr is not None
        try:
            if keeper.stdout.readline() != "mounted\n":
                said = keeper.stderr.read().strip().splitlines() or ["no reason given"]
                raise NotPossible(f"no small disk here: {said[-1]}; run as root, or allow user namespaces")
            yield SmallDisk(at, keeper.pid, with_user)
        finally:
            keeper.stdin.close()


NEARLY = 8192
"""Bytes that are left for a part of a trace."""

LITTLE = 131_072
"""Bytes that are left for compiled code: it fits in part."""

FEW_ROWS = 20_000
"""Bytes of rows after which a sweep's disk is filled."""

SWEEP_SECONDS, COMPILE_SECONDS = 300.0, 600.0
PLAN = """\
name = "chaos"
modes = ["eager"]
batch_sizes = [1]
rounds = 2
[[closed_loop]]
new_tokens = 4
requests = 20
"""


def traces_full(folder: Path) -> Happened:
    """The disk of cache, traces and log is full, then nearly, then has room again."""
    with small_disk(folder / "cache", 64 * MEGABYTE) as disk:
        log = str(disk.at / "service.log")

        def logging_there(command: list[str]) -> list[str]:
            return disk.within(["sh", "-c", 'exec "$@" 2>>"$0"', log, *command])

        with victim(folder, Setup(wrap=logging_there)) as service:
            service.await_warm()
            began = monotonic()
            wrong = traces_amiss(service, disk)
            return Happened(wrong or "served on; the next trace was kept", monotonic() - began, not wrong)


def traces_amiss(service: Victim, disk: SmallDisk) -> str:
    """What did not go on while the disk was full, nearly full, and free again; nothing: all did."""
    engine, statuses = service.engine(), []
    for left in (0, NEARLY):
        disk.fill(leave_bytes=left)
        before = listed(service.http)
        statuses += [service.generate(profile=True).status_code, service.generate().status_code]
        if listed(service.http) != before:
            return f"a trace was listed that {left} bytes cannot hold"
        disk.free()
    kept = service.generate(profile=True)
    trace = service.http.get(f"/v1/traces/{kept.json()['id']}")
    if {*statuses, kept.status_code} != {200} or service.engine() != engine:
        return f"answered with {statuses}, then {kept.status_code}"
    return "" if trace.status_code == 200 and trace.json()["traceEvents"] else "no trace with room for it"


def listed(http: httpx.Client) -> set[str]:
    answer = http.get("/v1/traces")
    assert answer.status_code == 200, answer.text
    return {trace["id"] for trace in answer.json()["traces"]}


def cache_full(folder: Path) -> Happened:
    """The disk of the compile cache has next to no room: what compiles nothing serves; with room all do."""
    with small_disk(folder / "cache", 256 * MEGABYTE) as disk:
        disk.fill(leave_bytes=LITTLE)
        with victim(folder, Setup(modes="eager,compiled", wrap=disk.within)) as service:
            began = monotonic()
            compiled = until(lambda: _ended(service), "the end of the compilation", COMPILE_SECONDS)
            seconds, engine = monotonic() - began, service.engine()
            served = service.generate().status_code
            disk.free()
            os.kill(engine, signal.SIGKILL)
            until(lambda: service.engine() != engine and service.ready(), "all modes", COMPILE_SECONDS)
            same = _outputs(service, "compiled") == _outputs(service, "eager")
            words = f"compiled {compiled}, eager answered with {served}; with room all modes ready"
            return Happened(words, seconds, served == 200 and same)


def _ended(service: Victim) -> str | None:
    """The state of the mode that compiles, with its reason, once it is one to stay."""
    statuses = {mode["mode"]: mode for mode in service.http.get("/v1/modes").json()["modes"]}
    compiled = statuses["compiled"]
    if compiled["state"] not in ("ready", "failed"):
        return None
    detail = str(compiled["detail"] or "").splitlines()
    told = [line for line in detail if "No space left" in line] or detail[:1]
    return " ".join([str(compiled["state"]), *(f"({line.strip()[:100]})" for line in told[:1])])


def _outputs(service: Victim, mode: str) -> object:
    return service.generate(mode).json()["outputs"]


def results_full(folder: Path) -> Happened:
    """The disk of a sweep's results fills in its middle: the remedy is said, and leads to a whole sweep."""
    with small_disk(folder / "small", 64 * MEGABYTE) as disk:
        began = monotonic()
        wrong = sweep_amiss(disk, folder, [])
        return Happened(wrong or "exit code 4; resumed, every row there", monotonic() - began, not wrong)


def sweep_amiss(disk: SmallDisk, folder: Path, options: list[str]) -> str:
    """What was wrong with a sweep whose disk was full for a while; nothing: all was right."""
    (folder / "plan.toml").write_text(PLAN)
    results = disk.at / "results"
    first = _sweep(disk, folder, [*options, f"--plan={folder / 'plan.toml'}", f"--out={results}"])
    rows = disk.seen / "results" / ROWS_FILE

    def begun() -> bool:
        return first.poll() is not None or (rows.exists() and rows.stat().st_size > FEW_ROWS)

    until(begun, "some rows", SWEEP_SECONDS)
    disk.fill()
    _, said = first.communicate(timeout=SWEEP_SECONDS)
    if first.returncode != EXIT_MACHINE or f"launchbound sweep --resume {results}" not in said:
        return f"exit code {first.returncode}: {said.strip()[-200:]}"
    disk.free()
    second = _sweep(disk, folder, [f"--resume={results}", *options])
    _, said = second.communicate(timeout=SWEEP_SECONDS)
    run = read_run(disk.seen / "results")
    measured = [(row.round, row.cell, row.index) for row in read_rows(rows.parent) if row.stage == "measure"]
    wanted = run.plan.rounds * sum(cell.requests for cell in run.plan.cells)
    if not run.complete or len(set(measured)) != wanted or len(measured) != wanted:
        count = len(set(measured))
        return f"resumed: exit code {second.returncode}, {count} of {wanted} requests: {said[-200:]}"
    return ""


def _sweep(disk: SmallDisk, folder: Path, options: list[str]) -> subprocess.Popen[str]:
    command = owned([sys.executable, "-m", "launchbound", "sweep", *options])
    return subprocess.Popen(
        disk.within(command),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "LAUNCHBOUND_CACHE_FOLDER": str(folder / "cache")},
        start_new_session=True,
    )
