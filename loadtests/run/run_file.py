"""`run.json`: everything about a sweep that is not a row, with a format version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from loadtests.plan.cells import Plan
from loadtests.run.document_file import DocumentFile
from loadtests.run.open_loop import CutVisit as CutVisit
from loadtests.run.rows import RowsError

RUN_FILE = "run.json"
PLAN_FILE = "plan.toml"
"""The plan as a plan file, with the options that replaced some of it."""

FORMAT_VERSION = 1

INTERRUPTED = "interrupted"
"""Why a part stopped that Ctrl-C, SIGTERM or SIGHUP has ended."""


class RunError(RowsError):
    """A results folder that cannot be used; the message names the remedy."""


class Client(msgspec.Struct, kw_only=True):
    """The load generator: its cores, its busiest process's share of one core, and how warm-up ended."""

    cpus: list[int] = []
    cpu_share: float | None = None
    rates: dict[str, float] = {}
    warmup_passes: int = 0
    warmup_settled: bool = False
    warmup_reason: str = ""


class RoundMachine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine in one round: the share of time that its hypervisor gave to others, and the canary.

    `canary_bytes_per_second` is the rate of reading a buffer as large as the model's weights before the
    round, on the load generator's core. None: cannot be read here. The round took `seconds`, in which the
    busiest process of the load (the load generator, or one of its workers) used `client_cpu_seconds` of CPU
    time; None in runs of before these were kept.
    """

    round: int
    steal_share: float | None
    canary_bytes_per_second: float | None
    seconds: float | None = None
    client_cpu_seconds: float | None = None


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """After `round`, the names of the main groups that went on, or at the last look remain undecided."""

    round: int
    undecided: list[str]


class Part(msgspec.Struct, kw_only=True):
    """One start of a sweep: the first, or one of `--resume`. A gap lies between two parts.

    `ended` None: it was killed, or still runs. `ready`: when the service could serve all modes; None in runs
    of before it was kept. The canary as in RoundMachine, after warm-up and after the last round; None: not
    measured, as after a kill. `gpus`: clocks, power and throttling of each GPU meanwhile
    (`loadtests.run.gpu_watch.summary`); empty where they were not sampled.
    """

    number: int
    started: str
    ready: str | None = None
    ended: str | None = None
    stopped_because: str | None = None
    warmup_passes: int = 0
    warmup_settled: bool = False
    warmup_reason: str = ""
    canary_before: float | None = None
    canary_after: float | None = None
    gpus: list[dict[str, Any]] = []


class SweepRun(msgspec.Struct, kw_only=True):
    """A sweep. `engine` and `modes` are GET /v1/modes at the end, `modes_before` at the start.

    `order` is the order that was run, cell names by round, and `rounds` how many of them were finished.
    `looks` are the looks taken so far. `ended` None: the sweep did not finish. `cut_visits` are
    of open-loop cells, whose rates `client` has. `service` is how the sweep started it (`options` of
    `serve`, `LAUNCHBOUND_…` variables of the `environment`); None: it was given by its address. `overrides`
    are the options that replaced what the preset or plan file says; `plan_from_file`: it was a file.
    `environment` is the machine and commit of the service, as it says itself; empty where it does not say.
    `load_tests` is the commit of the load tests' own code, with a digest of its changes. `method` is that of
    the load generator, None in folders of before it was recorded; the service's own is in `environment`.
    `auto` is that of GET /v1/modes at the start: what advised then; None of a service without `auto`.
    """

    format_version: int = FORMAT_VERSION
    method: int | None = None
    run: str
    url: str
    plan: Plan
    seed: int
    started: str
    ended: str | None = None
    complete: bool = False
    stopped_because: str | None = None
    order: list[list[str]] = []
    rounds: int = 0
    looks: list[Look] = []
    environment: dict[str, Any] = {}
    load_tests: dict[str, Any] = {}
    engine: dict[str, Any] = {}
    auto: dict[str, Any] | None = None
    modes_before: list[dict[str, Any]] = []
    modes: list[dict[str, Any]] = []
    machine_by_round: list[RoundMachine] = []
    cut_visits: list[CutVisit] = []
    client: Client = msgspec.field(default_factory=Client)
    settings: dict[str, Any] = {}
    service: dict[str, dict[str, str]] | None = None
    overrides: dict[str, Any] = {}
    plan_from_file: bool = False
    parts: list[Part] = []

    def mode(self, name: str) -> dict[str, Any]:
        """The status of one mode; empty where it is unknown."""
        return next((mode for mode in self.modes or self.modes_before if mode["mode"] == name), {})


_FILE = DocumentFile(
    RUN_FILE,
    SweepRun,
    FORMAT_VERSION,
    RunError,
    folder="results folder",
    writer="launchbound sweep",
    mend="run the sweep again",
)


def write_run(folder: Path, run: SweepRun) -> None:
    """Write `run.json` atomically."""
    _FILE.write(folder, run)


def read_run(folder: Path) -> SweepRun:
    """`run.json` of a results folder. Raises RunError where it is missing, broken or of another format."""
    return _FILE.read(folder)
