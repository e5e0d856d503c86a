"""run.json: all of a sweep that is not a row, versioned, written whole or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from loadtests.plan.cells import Plan
from loadtests.run.rows import RowsError
from loadtests.run.target import workload_of
from service.modes import Effect, Mode
from service.workloads import Workload

Document = TypeVar("Document", bound=msgspec.Struct)


class RunError(RowsError):
    """A results folder that cannot be used; the message names the remedy."""


@dataclass(frozen=True, slots=True)
class DocumentFile(Generic[Document]):
    """The file `name` of a folder, which holds a `kind` of format `version` (its field `format_version`).

    A folder that has one is a `folder`, written by `writer`; the remedy for a broken one is `mend`.
    """

    name: str
    kind: type[Document]
    version: int
    folder: str
    writer: str
    mend: str

    def is_in(self, folder: Path) -> bool:
        return (folder / self.name).is_file()

    def write(self, folder: Path, document: Document) -> None:
        """Replace it atomically."""
        temporary = folder / f"{self.name}.new"
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
        temporary.replace(folder / self.name)

    def read(self, folder: Path) -> Document:
        """That of `folder`. Raises RunError where it is missing, broken or of another format."""
        path = folder / self.name
        try:
            content = path.read_bytes()
        except OSError as error:
            raise RunError(
                f"{folder} is no {self.folder} ({error}): name one that `{self.writer}` wrote"
            ) from error
        try:
            version = msgspec.json.decode(content).get("format_version")
            if version != self.version:
                found = f"{path} has format {version}, this version reads {self.version}"
                raise RunError(f"{found}: use the one that wrote it")
            return msgspec.json.decode(content, type=self.kind)
        except (msgspec.DecodeError, AttributeError) as error:
            raise RunError(f"{path} is broken ({error}): {self.mend}") from error


RUN_FILE = "run.json"
SERIES_FILE = "series.json"
PLAN_FILE = "plan.toml"
"""The plan as a plan file, with the options that replaced some of it."""

FORMAT_VERSION = 1

INTERRUPTED = "interrupted"
"""Why a part stopped that Ctrl-C, SIGTERM or SIGHUP has ended."""


class Client(msgspec.Struct, kw_only=True):
    """The load generator: its cores, its busiest process's share of one core, and how warm-up ended.

    `rates`: arrivals per second of each open-loop cell.
    """

    cpus: list[int] = []
    cpu_share: float | None = None
    rates: dict[str, float] = {}
    warmup_passes: int = 0
    warmup_settled: bool = False
    warmup_reason: str = ""


class RoundMachine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine in one round: the share of time that its hypervisor gave to others, and the canary.

    `canary_bytes_per_second` is the rate of reading a buffer as large as the model's weights before the
    round, on the load generator's core; None: not known. In the round's `seconds` the busiest process of the
    load used `client_cpu_seconds` of CPU time.
    """

    round: int
    steal_share: float | None
    canary_bytes_per_second: float | None
    seconds: float | None = None
    client_cpu_seconds: float | None = None


class InterimCheck(msgspec.Struct, frozen=True, kw_only=True):
    """After `round`, the names of the main groups that went on, or at the last check remain undecided."""

    round: int
    undecided: list[str]


class CutBlock(msgspec.Struct, frozen=True, kw_only=True):
    """An open-loop block that ended before its last request, because of `reason`.

    The requests with an index below `sent` were sent; the others need no row.
    """

    round: int
    cell: str
    sent: int
    reason: str


class Part(msgspec.Struct, kw_only=True):
    """One start of a sweep: the first, or one of `--resume`. A gap lies between two parts.

    `ended` None: it was killed, or still runs. `ready`: when the service could serve all modes. The canary as
    in RoundMachine, after warm-up and after the last round. `gpus`: clocks, power and throttling of each GPU
    meanwhile (`loadtests.run.machine.clocks_summary`).
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

    `order` has the names of cells by round as they ran, of which `rounds` were finished; `looks` are the
    interim checks so far, `cut_visits` the blocks that ended early. `ended` None: it did not finish.
    `service` is how the sweep started it (`options` of `serve`, `LAUNCHBOUND_…` variables of the
    `environment`); None: it was given by its address. `overrides` are the options that replaced what the
    preset or plan file says. `environment` is the service's machine and commit, as it says itself;
    `load_tests` the commit of the load tests, with a digest of its changes. `method` is the load generator's.
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
    looks: list[InterimCheck] = []
    environment: dict[str, Any] = {}
    load_tests: dict[str, Any] = {}
    engine: dict[str, Any] = {}
    modes_before: list[dict[str, Any]] = []
    modes: list[dict[str, Any]] = []
    machine_by_round: list[RoundMachine] = []
    cut_visits: list[CutBlock] = []
    client: Client = msgspec.field(default_factory=Client)
    settings: dict[str, Any] = {}
    service: dict[str, dict[str, str]] | None = None
    overrides: dict[str, Any] = {}
    plan_from_file: bool = False
    parts: list[Part] = []

    @property
    def workload(self) -> Workload:
        return workload_of(self.engine)

    def mode(self, name: str) -> dict[str, Any]:
        """The status of one mode; empty where it is unknown."""
        return next((mode for mode in self.modes or self.modes_before if mode["mode"] == name), {})

    def effect(self, mode: Mode) -> Effect:
        """What `mode` did: by the ladder, and with breaks where its compiler left the graph."""
        effect = mode.effect(self.engine.get("device", "cpu"))
        breaks = effect.compile is not None and self.mode(mode.name).get("graph_breaks")
        return effect.with_breaks if breaks else effect


_RUN = DocumentFile(
    RUN_FILE, SweepRun, FORMAT_VERSION, "results folder", "launchbound sweep", "run the sweep again"
)
read_run, write_run = _RUN.read, _RUN.write
