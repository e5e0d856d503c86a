"""What runs on a node: the ordinary sweep as a child process, and its folder sent back in pieces."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from time import perf_counter, sleep

from loadtests.fleet.left_over import other_owner, prefix_of
from loadtests.fleet.messages import Ended, Event, NodeFacts, Order, Piece, Refused, Sent, Started
from loadtests.fleet.record import Code
from loadtests.run.environment import git_state
from loadtests.run.owned import owned
from loadtests.run.run_file import PLAN_FILE
from service.statistics.method import METHOD

SWEEP_LOG = "sweep.log"
"""What the sweep has printed, in its folder."""

PIECE_BYTES = 4 * 2**20
"""Small beside the least object store that Ray makes (75 MB)."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
ENDED_WITHIN_SECONDS = 60.0
_POLL_SECONDS = 0.5
_FOLDERS = "launchbound-fleet"
_OF_RAY = ("RAY_", "SPT_NOENV")


def installed_code() -> Code:
    """The launchbound that this process runs."""
    state = git_state()
    return Code(
        version=version("launchbound"), commit=state["commit"], changes=state["changes"], method=METHOD
    )


def node_facts() -> NodeFacts:
    """Of this process and its machine."""
    return NodeFacts(code=installed_code(), machine=BOOT_ID.read_text().strip(), niceness=os.nice(0))


def run_order(order: Order) -> Iterator[Event]:
    """Sweep into a temporary folder, and send it. The sweep ends with this process, however that ends."""
    facts = node_facts()
    if facts.code != order.code:
        yield Refused(said=other_code(facts.code, order.code))
        return
    if (other := _machine_taken()) is not None:
        yield Refused(
            said=f"process {other} sweeps on this machine for another fleet: wait until it has ended"
        )
        return
    with tempfile.TemporaryDirectory(prefix=prefix_of(_FOLDERS)) as place:
        results = Path(place) / "results"
        results.mkdir()
        plan = Path(place) / PLAN_FILE
        plan.write_text(order.plan, encoding="utf-8")
        yield Started(facts=facts)
        began = perf_counter()
        exit_code = _sweep([*order.command, f"--plan={plan}", f"--out={results}", *order.options], results)
        yield Ended(exit_code=exit_code, seconds=perf_counter() - began)
        yield from _pieces(results, Path(place) / "results.zip")
    yield Sent()


def other_code(own: Code, drivers: Code) -> str:
    """Why a node with the code `own` is not used, and the remedy."""
    return f"it has launchbound {own}, this command is {drivers}: install the same on both"


def _sweep(arguments: Sequence[str], results: Path) -> int:
    with (results / SWEEP_LOG).open("wb") as log:
        process = subprocess.Popen(
            owned([sys.executable, *arguments]),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=results.parent,
            env=environment_before_ray(),
        )
        try:
            return process.wait()
        finally:
            process.kill()
            process.wait()


def environment_before_ray() -> dict[str, str]:
    """The variables with which this process was started, as `ray start` had them.

    Ray sets OMP_NUM_THREADS and CUDA_VISIBLE_DEVICES inside its workers: a sweep would measure with these.
    """
    entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if entry)
    return {name: value for name, _, value in pairs if not name.startswith(_OF_RAY)}


def _pieces(folder: Path, archive: Path) -> Iterator[Piece]:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                packed.write(path, path.relative_to(folder))
    with archive.open("rb") as file:
        while data := file.read(PIECE_BYTES):
            yield Piece(data=data)


def _machine_taken() -> int | None:
    """Another process of this machine that sweeps; None once there is none. What killed ones left is removed.

    Ray may call a node dead, and a new one may join, before the processes of the old one have ended.
    """
    deadline = perf_counter() + ENDED_WITHIN_SECONDS
    while (other := other_owner(_FOLDERS)) is not None and perf_counter() < deadline:
        sleep(_POLL_SECONDS)
    return other
