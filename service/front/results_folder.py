"""The sweeps under the results folder: what each wrote of itself, read anew at each call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from service.front.errors import NotFound
from service.front.schemas.runs import RunBody

RUN_FILE, SERIES_FILE, REPORT_FILE, MARKDOWN_FILE, VALIDATION_FILE = (
    "run.json", "series.json", "report.html", "report.md", "validation.json",
)  # fmt: skip
"""Of a sweep's folder, as docs/sweeps.md describes it."""


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
