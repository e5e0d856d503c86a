"""The sweeps under the results folder, and two of them compared."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from typing_extensions import TypedDict

from service.front.errors import LaunchboundError, NotFound
from service.protocol.parent_death import owned

RUN_FILE, SERIES_FILE, REPORT_FILE, MARKDOWN_FILE, VALIDATION_FILE = (
    "run.json", "series.json", "report.html", "report.md", "validation.json",
)  # fmt: skip
"""Of a sweep's folder, as docs/sweeps.md describes it."""


class RunBody(TypedDict):
    """One sweep, from its own files; null is what they do not have.

    `headline` is the report's first line, `valid` whether the gates passed, `problem` which file is faulty.
    """

    name: str
    started: str | None
    complete: bool | None
    preset: str | None
    model: str | None
    device_name: str | None
    commit: str | None
    valid: bool | None
    headline: str | None
    has_report: bool
    problem: str | None


class _Plan(msgspec.Struct, frozen=True):
    preset: str | None = None


class _Environment(msgspec.Struct, frozen=True):
    commit: str | None = None


class _Engine(msgspec.Struct, frozen=True):
    model: str | None = None
    device_name: str | None = None


class _Run(msgspec.Struct, frozen=True):
    """What is shown of `run.json`; it has far more."""

    started: str | None = None
    complete: bool | None = None
    plan: _Plan = _Plan()
    environment: _Environment = _Environment()
    engine: _Engine | None = None


class _Validation(msgspec.Struct, frozen=True):
    passed: bool


_decode_run = msgspec.json.Decoder(_Run).decode
_decode_validation = msgspec.json.Decoder(_Validation).decode


class ResultsFolder:
    """Folders with a `run.json` in `path`, which need not exist, or in a folder with a `series.json` there.

    A sweep of such a series, one of a plan with several precisions, is named `SERIES/PRECISION`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def runs(self) -> list[RunBody]:
        """Every sweep, newest first; one whose files cannot be read has a `problem`."""
        found = [_described(folder, self._name(folder)) for folder in self._folders()]
        return sorted(found, key=lambda run: (run["started"] or "", run["name"]), reverse=True)

    def folder(self, name: str) -> Path:
        """The folder of one sweep. Raises NotFound for a name that is not one of `runs`."""
        for folder in self._folders():
            # Among the names that there are, so that none leads out of the folder.
            if self._name(folder) == name:
                return folder
        raise NotFound(f"no sweep '{name[:64]}' here: GET /v1/runs lists those that there are", param="name")

    def report(self, name: str) -> bytes:
        """The page of one sweep's report. Raises NotFound where there is none."""
        try:
            return (self.folder(name) / REPORT_FILE).read_bytes()
        except FileNotFoundError:
            message = f"the sweep '{name}' has no report yet: run `launchbound report` on its folder"
            raise NotFound(message, type="no_report", param="name") from None

    def _folders(self) -> Iterator[Path]:
        if not self.path.is_dir():
            return
        for folder in self.path.iterdir():
            inner = folder.iterdir() if (folder / SERIES_FILE).is_file() else ()
            yield from (one for one in (folder, *inner) if (one / RUN_FILE).is_file())

    def _name(self, folder: Path) -> str:
        return folder.relative_to(self.path).as_posix()


def _described(folder: Path, name: str) -> RunBody:
    problem, run, valid = None, _Run(), None
    try:
        run = _decode_run((folder / RUN_FILE).read_bytes())
        valid = _passed(folder / VALIDATION_FILE)
    except (OSError, msgspec.DecodeError) as error:
        problem = f"cannot be read: {error}"
    engine = run.engine or _Engine()
    return {
        "name": name,
        "started": run.started,
        "complete": run.complete,
        "preset": run.plan.preset,
        "model": engine.model,
        "device_name": engine.device_name,
        "commit": run.environment.commit,
        "valid": valid,
        "headline": _headline(folder / MARKDOWN_FILE),
        "has_report": (folder / REPORT_FILE).is_file(),
        "problem": problem,
    }


def _passed(path: Path) -> bool | None:
    """Whether the gates passed; None where they have not been checked."""
    return _decode_validation(path.read_bytes()).passed if path.is_file() else None


def _headline(path: Path) -> str | None:
    """The first line of `report.md`, which is the answer; None without one."""
    if not path.is_file():
        return None
    with path.open(encoding="utf-8", errors="replace") as lines:
        return lines.readline().strip().removeprefix("# ") or None


COMMAND = (sys.executable, "-m", "launchbound", "compare", "--json")
EXIT_BAD_INPUT = 2
RETRY_SECONDS = 5
PREFIX = "launchbound: "


class ComparisonBusy(LaunchboundError, status=409, type="comparison_busy"):
    """Two sweeps are being compared; it is done one pair at a time."""


class NotComparable(LaunchboundError, status=422, type="not_comparable"):
    """`launchbound compare` refuses these two sweeps; the message is its own."""


class RunComparison:
    """Runs `launchbound compare`, as the front imports nothing of the load tests.

    One comparison at a time: each reads every row of two sweeps.
    """

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._command = tuple(command)
        self._busy = False

    async def compare(self, before: Path, after: Path, force: bool) -> bytes:
        """The document of `launchbound compare`, its sides by name. Cancelled, it ends the process.

        Raises ComparisonBusy, NotComparable with the command's message, or LaunchboundError where it fails.
        """
        if self._busy:
            message = "another comparison is under way; they run one at a time"
            raise ComparisonBusy(message, retry_after_seconds=RETRY_SECONDS)
        self._busy = True
        try:
            options = ["--force"] if force else []
            return _named(await self._run([*options, "--", str(before), str(after)]), before, after)
        finally:
            self._busy = False

    async def _run(self, arguments: Sequence[str]) -> bytes:
        process = await asyncio.create_subprocess_exec(
            *owned((*self._command, *arguments)),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,
        )
        try:
            output, errors = await process.communicate()
        finally:
            await _end(process)
        if process.returncode == 0:
            return output
        message = (errors.decode(errors="replace").strip().splitlines() or ["it gave no reason"])[-1]
        if process.returncode == EXIT_BAD_INPUT:
            raise NotComparable(message.removeprefix(PREFIX))
        raise LaunchboundError(f"launchbound compare ended with {process.returncode}: {message}")


async def _end(process: Process) -> None:
    """Kill the process where it still runs: nobody waits for its answer."""
    if process.returncode is None:
        process.kill()
        await process.wait()


def _named(output: bytes, before: Path, after: Path) -> bytes:
    """The document with the sweeps' names in place of where they lie on this machine."""
    document = msgspec.json.decode(output)
    for side, folder in (("before", before), ("after", after)):
        document[side]["path"] = folder.name
    return msgspec.json.encode(document)
