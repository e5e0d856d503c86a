"""One plan in several precisions: a service and a folder each, one page, kept and gone on with as a whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

import launchbound
from loadtests.plan.plan_file import plan_of, read_plan_file
from loadtests.run import sweep, target
from loadtests.run.events import GeneratorEvent, RequestEnded, run_load_generator
from loadtests.run.folder import DiskFull
from loadtests.run.rows import ROWS_FILE, read_rows
from loadtests.run.run_file import PLAN_FILE, Series, read_run, read_series
from service.cli.options import EXIT_BAD_INPUT, EXIT_FAILED
from service.front import launch
from service.front.launch import LaunchError
from tests.support.fake_service import Script, fake_service

pytestmark = pytest.mark.slow

PLAN = """\
name = "own"
dtypes = ["float32", "bfloat16", "autocast-bfloat16"]
modes = ["eager", "compiled"]
batch_sizes = [1]
seed = 3
rounds = 2

[[closed_loop]]
new_tokens = 4
requests = 2
"""

DTYPES = ["float32", "bfloat16", "autocast-bfloat16"]


@dataclass
class Services:
    """Those that were started, by precision: how one behaves, and what its start raises."""

    scripts: dict[str, Script] = field(default_factory=dict)
    raised: dict[str, BaseException] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    running: int = 0

    @contextmanager
    def launched(self, options: list[str], log: Path, **_: object) -> Iterator[str]:
        dtype = next(one.partition("=")[2] for one in options if one.startswith("--dtype="))
        self.started.append(dtype)
        log.write_text("a last word\n")
        if dtype in self.raised:
            raise self.raised.pop(dtype)
        script = self.scripts.setdefault(dtype, Script())
        script.dtype = dtype
        assert not self.running
        self.running += 1
        try:
            with fake_service(script) as url:
                yield url
        finally:
            self.running -= 1


@contextmanager
def stand_ins() -> Iterator[Services]:
    """In place of the services that a sweep starts."""
    found = Services()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "launched", found.launched)
        patch.setattr(target, "POLL_SECONDS", 0.01)
        patch.setattr(target, "COUNTED_WITHIN_SECONDS", 0.2)
        yield found


@pytest.fixture
def services() -> Iterator[Services]:
    with stand_ins() as found:
        yield found


def invoke(*options: str) -> Result:
    return CliRunner().invoke(launchbound.app, ["sweep", *options])


def begin(folder: Path, plan: str = PLAN) -> Result:
    (folder / "own.toml").write_text(plan)
    return invoke("--plan", str(folder / "own.toml"), "--out", str(folder / "out"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Services, Path, Result]:
    """A series that went well, to be looked at: its services, folder and what the command printed."""
    folder = tmp_path_factory.mktemp("whole")
    with stand_ins() as found:
        return found, folder, begin(folder)


def states(folder: Path) -> list[tuple[str, str]]:
    return [(run.dtype, run.state) for run in read_series(folder / "out").runs]


def last(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def interrupting(dtype: str, number: int) -> Callable[..., Iterator[GeneratorEvent | None]]:
    """A load generator that Ctrl-C stops in a round of one precision, once."""
    done = []

    def generator(assignment: Any, *rest: Any) -> Iterator[GeneratorEvent | None]:
        for event in run_load_generator(assignment, *rest):
            yield event
            mine = isinstance(event, RequestEnded) and event.round == number
            if mine and assignment.folder.endswith(dtype) and not done:
                done.append(event)
                raise KeyboardInterrupt

    return generator


def test_each_precision_is_an_ordinary_sweep_and_one_page_shows_all(
    whole: tuple[Services, Path, Result],
) -> None:
    services, parent, result = whole
    folder = parent / "out"
    assert services.started == DTYPES
    assert states(parent) == [(dtype, "complete") for dtype in DTYPES]
    for dtype in DTYPES:
        run = read_run(folder / dtype)
        assert run.engine["dtype"] == dtype
        assert run.service["options"]["dtype"] == dtype
        assert (folder / dtype / "report.html").exists()
        own = read_plan_file(folder / dtype / PLAN_FILE)
        assert own.dtypes == [dtype]
        assert plan_of(own) == run.plan
    assert read_plan_file(folder / PLAN_FILE).dtypes == DTYPES
    assert [run["label"] for run in last(result)["runs"]] == DTYPES
    assert last(result)["path"] == str(folder)
    assert result.exit_code == (0 if all(run["valid"] for run in last(result)["runs"]) else EXIT_FAILED)
    assert "the speed in A" in (folder / "runs.html").read_text()
    assert f"go on with `launchbound sweep --resume {folder}`" in str(DiskFull(folder))
    sent, orders = [], []
    for dtype in DTYPES:
        script = services.scripts[dtype]
        ids = [headers["x-request-id"] for headers in script.headers]
        bodies = dict(zip(ids, script.bodies, strict=True))
        rows = [row for row in read_rows(folder / dtype) if row.stage == "measure"]
        orders.append([(row.round, row.cell, row.index) for row in rows])
        sent.append([bodies[row.request_id] for row in rows])
    assert orders[0] == orders[1] == orders[2]
    assert sent[0] == sent[1] == sent[2]


def test_a_precision_that_fails_stops_no_other_and_is_said_on_the_page(
    services: Services, tmp_path: Path
) -> None:
    services.raised["float32"] = LaunchError("no compiler & no luck")
    services.scripts["bfloat16"] = Script(failed_mode="compiled")
    reasons = {"float32": "no compiler & no luck", "bfloat16": "mode compiled failed to become ready"}
    result = begin(tmp_path)
    assert result.exit_code == EXIT_FAILED
    assert states(tmp_path) == [
        ("float32", "failed"),
        ("bfloat16", "failed"),
        ("autocast-bfloat16", "complete"),
    ]
    assert last(result)["headline"].startswith("NOT ")
    assert "NOT MEASURED: float32 and bfloat16." in last(result)["headline"]
    page = (tmp_path / "out" / "runs.html").read_text()
    for dtype, said in reasons.items():
        assert said in last(result)["absent"][dtype]
        assert page.index(said.replace("&", "&amp;")) < page.index("<h1>")
        assert said in (tmp_path / "out" / "runs.md").read_text()


def test_an_interrupted_series_is_kept_shown_and_resumed(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose first run can never be valid: that is over, and the next began."""
    services.scripts["float32"] = Script(fail_after=3)
    monkeypatch.setattr(sweep, "run_load_generator", interrupting("/bfloat16", 2))
    folder = tmp_path / "out"
    result = begin(tmp_path)
    assert result.exit_code == EXIT_FAILED
    assert states(tmp_path) == [
        ("float32", "failed"),
        ("bfloat16", "begun"),
        ("autocast-bfloat16", "not begun"),
    ]
    assert "requests in a row failed" in str(read_series(folder).runs[0].said)
    assert [run["valid"] for run in last(result)["runs"]] == [False]
    assert "not begun; go on with" in last(result)["absent"]["autocast-bfloat16"]
    before = {dtype: (folder / dtype / ROWS_FILE).read_bytes() for dtype in DTYPES[:2]}
    again = invoke("--resume", str(folder))
    assert states(tmp_path) == [("float32", "failed"), *((dtype, "complete") for dtype in DTYPES[1:])]
    assert services.started == [*DTYPES[:2], *DTYPES[1:]]
    assert (folder / "float32" / ROWS_FILE).read_bytes() == before["float32"]
    assert (folder / "bfloat16" / ROWS_FILE).read_bytes().startswith(before["bfloat16"])
    assert len(read_run(folder / "bfloat16").parts) == 2
    assert last(again)["absent"].keys() == {"float32"}
    assert len(last(again)["runs"]) == 2


def test_a_series_that_is_stopped_while_a_service_starts_is_resumed_by_what_is_as_it_was(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services.raised["bfloat16"] = KeyboardInterrupt()
    result = begin(tmp_path, PLAN.replace(', "autocast-bfloat16"', ""))
    assert result.exit_code == EXIT_FAILED
    assert states(tmp_path) == [("float32", "complete"), ("bfloat16", "begun")]
    assert len(last(result)["runs"]) == 1
    assert "ended early, before it measured" in last(result)["absent"]["bfloat16"]
    folder = str(tmp_path / "out")
    assert "leave out --url" in invoke("--resume", folder, "--url", "http://127.0.0.1:1").stderr
    assert "another plan" in invoke("--resume", folder, "--preset", "quick").stderr
    with monkeypatch.context() as patched:
        other = {"commit": "another", "dirty": False, "changes": None}
        patched.setattr(sweep, "git_state", lambda: other)
        refused = invoke("--resume", folder)
    assert refused.exit_code == EXIT_BAD_INPUT
    assert "commit was" in refused.stderr
    with monkeypatch.context() as patched:
        patched.setenv("LAUNCHBOUND_CONTEXT", "128")
        assert "LAUNCHBOUND_CONTEXT was not set" in invoke("--resume", folder).stderr
    assert services.started == DTYPES[:2]
    # The plan that it has already may be named.
    assert invoke("--resume", folder, "--plan", str(tmp_path / "out" / PLAN_FILE)).exit_code != EXIT_BAD_INPUT
    assert states(tmp_path) == [(dtype, "complete") for dtype in DTYPES[:2]]
    assert services.started == [*DTYPES[:2], "bfloat16"]
    assert "nothing is left to measure" in invoke("--resume", folder).stderr


def test_the_service_of_somebody_else_has_no_precision_to_choose(services: Services, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(PLAN)
    result = invoke("--plan", str(tmp_path / "own.toml"), "--url", "http://127.0.0.1:1")
    assert result.exit_code == EXIT_BAD_INPUT
    assert "`report A B C`" in result.stderr
    assert services.started == []


def test_one_precision_by_option_or_by_plan_is_an_ordinary_sweep(services: Services, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(PLAN)
    plan = ["--plan", str(tmp_path / "own.toml")]
    invoke(*plan, "--dtype", "bfloat16", "--out", str(tmp_path / "option"))
    run = read_run(tmp_path / "option")
    assert run.engine["dtype"] == "bfloat16"
    assert run.overrides == {"dtypes": ["bfloat16"]}
    (tmp_path / "own.toml").write_text(PLAN.replace('"float32", "bfloat16", ', ""))
    services.raised["autocast-bfloat16"] = LaunchError("no luck")
    refused = invoke(*plan, "--out", str(tmp_path / "plan"))
    assert "no luck" in refused.stderr
    assert services.started == ["bfloat16", "autocast-bfloat16"]
    assert not (tmp_path / "plan" / "series.json").exists()
    assert "no precision 'float'" in invoke(*plan, "--dtype", "float", "--dry-run").stderr


def test_a_dry_run_shows_all_runs_with_the_sum_and_gives_the_plan_back(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(PLAN)
    plan = ["--plan", str(tmp_path / "own.toml"), "--dry-run"]
    shown = invoke(*plan).stdout
    for dtype in DTYPES:
        assert f"FOLDER/{dtype}" in shown
    assert "in all 3 × 3 cells" in shown
    text = invoke(*plan, "--toml").stdout
    (tmp_path / "own.toml").write_text(text)
    assert read_plan_file(tmp_path / "own.toml").dtypes == DTYPES
    assert invoke(*plan, "--toml").stdout == text


def test_a_run_whose_folder_is_complete_is_complete(
    whole: tuple[Services, Path, Result], tmp_path: Path
) -> None:
    """A kill may strike between the end of a run and the note of it."""
    shutil.copytree(whole[1] / "out", tmp_path / "out")
    path = tmp_path / "out" / "series.json"
    path.write_text(path.read_text().replace('"complete"', '"begun"'))
    found: Series = read_series(tmp_path / "out")
    assert all(run.state == "complete" for run in found.runs)
