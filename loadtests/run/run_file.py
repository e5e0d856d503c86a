"""run.json and series.json: all of a sweep that is not a row, versioned, written whole or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import msgspec

from loadtests.plan.cells import Plan
from loadtests.plan.plan_file import Dtype
from loadtests.run.rows import RowsError


class CutVisit(msgspec.Struct, frozen=True, kw_only=True):
    """An open-loop visit that ended before its last request, because of `reason`.

    The requests with an index below `sent` were sent; the plan does not owe the others.
    """

    round: int
    cell: str
    sent: int
    reason: str


Document = TypeVar("Document", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class DocumentFile(Generic[Document]):
    """The file `name` of a folder, which holds a `kind` of format `version` (its field `format_version`).

    A folder that has one is a `folder`, written by `writer`; what reading raises is `error`, and where the
    document is broken its remedy is `mend`.
    """

    name: str
    kind: type[Document]
    version: int
    error: type[Exception]
    folder: str
    writer: str
    mend: str

    def is_in(self, folder: Path) -> bool:
        """Whether `folder` has one."""
        return (folder / self.name).is_file()

    def write(self, folder: Path, document: Document) -> None:
        """Replace it atomically."""
        temporary = folder / f"{self.name}.new"
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
        temporary.replace(folder / self.name)

    def read(self, folder: Path) -> Document:
        """That of `folder`. Raises `error` where it is missing, broken or of another format."""
        path = folder / self.name
        try:
            content = path.read_bytes()
        except OSError as error:
            raise self.error(
                f"{folder} is no {self.folder} ({error}): name one that `{self.writer}` wrote"
            ) from error
        try:
            version = msgspec.json.decode(content).get("format_version")
            if version != self.version:
                found = f"{path} has format {version}, this version reads {self.version}"
                raise self.error(f"{found}: use the one that wrote it")
            return msgspec.json.decode(content, type=self.kind)
        except (msgspec.DecodeError, AttributeError) as error:
            raise self.error(f"{path} is broken ({error}): {self.mend}") from error


def write_result(folder: Path, name: str, document: dict[str, Any]) -> None:
    """Keep what an experiment found as `name` in `folder`, which is made where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(msgspec.json.format(msgspec.json.encode(document)) + b"\n")


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
    (`loadtests.run.machine.clocks_summary`); empty where they were not sampled.
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


SERIES_FILE = "series.json"
SERIES_VERSION = 1

State = Literal["not begun", "begun", "complete", "failed"]


class SeriesRun(msgspec.Struct, kw_only=True):
    """One precision; its results are in the folder of this name beside `series.json`.

    `begun`: it runs, or ended early and is gone on with. `failed`: it measured nothing, or can never become
    valid; `said` is why, or what ended it early.
    """

    dtype: Dtype
    state: State = "not begun"
    said: str | None = None

    @property
    def over(self) -> bool:
        """Whether nothing of it is owed."""
        return self.state in ("complete", "failed")

    def begin(self) -> None:
        """Note that it runs, and forget what ended it before."""
        self.state, self.said = "begun", None


class Series(msgspec.Struct, kw_only=True):
    """Runs of the plan file `plan`, in order. `options` are those of `serve` besides the precision.

    `environment` holds the `LAUNCHBOUND_…` variables and `load_tests` the commit of the load tests' own code,
    with a digest of its changes: the same for all runs. `overrides` and `plan_from_file` as in `run.json`;
    `workers` load processes post the requests.
    """

    format_version: int = SERIES_VERSION
    started: str
    plan: str
    options: dict[str, str]
    environment: dict[str, str]
    load_tests: dict[str, Any]
    overrides: dict[str, Any] = {}
    plan_from_file: bool = False
    workers: int = 1
    runs: list[SeriesRun]


_SERIES_FILE = DocumentFile(
    SERIES_FILE,
    Series,
    SERIES_VERSION,
    RunError,
    folder="series of sweeps",
    writer="launchbound sweep",
    mend="report its folders by `report A B C`",
)


def is_series(folder: Path) -> bool:
    """Whether `folder` holds the runs of a series."""
    return _SERIES_FILE.is_in(folder)


def write_series(folder: Path, series: Series) -> None:
    """Write `series.json` atomically."""
    _SERIES_FILE.write(folder, series)


def read_series(folder: Path) -> Series:
    """`series.json` of `folder`; a run whose own folder says that it is complete is.

    Raises RunError where a file is missing, broken or of another format.
    """
    series = _SERIES_FILE.read(folder)
    for run in series.runs:
        # Killed between the end of a run and the note of it here, or gone on with by its own folder.
        if run.state == "begun" and _is_complete(folder / run.dtype):
            run.state, run.said = "complete", None
    return series


def _is_complete(folder: Path) -> bool:
    return (folder / RUN_FILE).is_file() and read_run(folder).complete
