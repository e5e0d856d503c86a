"""The document, the table, the last line and the exit code of a selftest."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from rich.console import Console

from service.front.settings import Settings
from service.measure.cpu_sampler import Place
from service.modes import swept_modes
from service.proof import over_http, runner, worker
from service.proof.rows import Check, Event, Property, Row, run_check
from service.proof.runner import new_report
from service.statistics.intervals import Interval
from tests.proof.samples import FAILURES

CHECKS: dict[str, Check] = {**worker.CHECKS, **over_http.CHECKS}

FACTS: dict[str, str | int] = {
    "cpu": "A CPU", "device": "A CPU", "torch": "2.13.0", "threads": 1,
    "dtype": "float32", "default_dtype": "float32",
}  # fmt: skip


SETTINGS = Settings(modes=swept_modes("cpu"))
GIT: Mapping[str, object] = {"commit": "0123456789ab", "dirty": False}


def row(name: str, low: float, high: float) -> Row:
    return Property(name, "≤ 1", most=1.0).within(Interval((low + high) / 2, low, high, 8))


GOOD = row("good", 0.5, 0.6)
OPEN = row("open", 0.9, 1.1)
BAD = row("bad", 2.0, 3.0)
GPU = Property("gpu", "all").not_measurable("no GPU")


@pytest.fixture(autouse=True)
def clean_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "git_state", lambda: {"commit": "0123456789ab", "dirty": False})


def made(rows: list[Row], finished: set[str] | None = None) -> dict[str, Any]:
    return new_report(rows, set(runner.ALL_CHECKS) if finished is None else finished, FACTS, SETTINGS, 12.0)


def test_the_document_has_the_fields_that_other_programs_read() -> None:
    report = made([GOOD, OPEN, GPU])
    document = json.loads(msgspec.json.encode(report))
    assert {"commit", "dirty", "machine", "cpu", "device", "dtype", "model", "created"} <= document.keys()
    assert (document["format_version"], document["machine"]) == (2, "A CPU")
    assert (document["outcome"], document["complete"], document["incomplete_because"]) == (
        "undecided",
        True,
        [],
    )
    assert document["counts"]["undecided"] == 1
    assert document["rows_by_verdict"]["undecided"] == ["open"]
    assert document["detail"] == "1 of 2 rows passed; undecided: open; not measurable here: gpu"
    for found in document["rows"]:
        assert {"name", "bound", "value", "low", "high", "verdict", "note", "runs"} <= found.keys()
    assert document["rows"][2]["value"] is None


def printed(report: dict[str, Any]) -> str:
    console = Console(file=io.StringIO(), width=240)
    runner.print_table(report, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return str(text)


def test_the_table_ends_with_the_outcome_and_every_row_that_did_not_pass() -> None:
    assert "passed. 1 of 1 rows passed." in printed(made([GOOD]))
    undecided = printed(made([GOOD, OPEN]))
    assert "UNDECIDED: no row failed, and not all passed. 1 of 2 rows passed; undecided: open." in undecided
    assert "FAILED. 1 of 2 rows passed; failed: bad." in printed(made([GOOD, BAD]))


def test_a_partial_selftest_says_so_and_why() -> None:
    text = printed(made([GOOD], {"injected"}))
    assert "PARTIAL" in text
    assert "does not count as the machine's selftest. 1 of 1 rows passed; not run: sampling-rate, " in text
    assert "partial, because: 13 of 14 checks were not run" in text


@pytest.mark.parametrize(("rows", "code"), [([GOOD], 0), ([GOOD, OPEN], 0), ([GOOD, BAD], 1)])
def test_the_exit_code_is_1_for_a_failed_row_and_the_last_line_names_what_did_not_pass(
    rows: list[Row],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def in_worker(selftest: runner._Selftest, names: list[str]) -> None:
        selftest.take(Event(facts=FACTS))
        for name in names:
            selftest.take(Event(name, rows=rows if name == "injected" else []))

    monkeypatch.setattr(runner._Selftest, "in_worker", in_worker)
    only = list(runner.ENGINE_CHECKS)
    assert runner.main(SETTINGS, only, tmp_path) == code
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["complete"] is False
    assert last["outcome"] == ("failed" if code else "partial")
    assert last["not_run"] == [name for name in runner.ALL_CHECKS if name not in only]
    assert last["undecided"] == [row.name for row in rows if row.verdict == "undecided"]
    assert last["failed"] == [row.name for row in rows if row.verdict == "fail"]
    assert last["path"] == str(tmp_path / runner.FILE)


def test_rows_are_on_disk_before_the_report_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_worker(selftest: runner._Selftest, names: list[str]) -> None:
        selftest.take(Event("injected", rows=[GOOD, BAD]))

    def breaks(*_: object) -> dict[str, Any]:
        raise RuntimeError("no report")

    monkeypatch.setattr(runner._Selftest, "in_worker", in_worker)
    monkeypatch.setattr(runner, "new_report", breaks)
    with pytest.raises(RuntimeError, match="no report"):
        runner.main(SETTINGS, ["injected"], tmp_path)
    kept = [json.loads(line)["name"] for line in (tmp_path / runner.ROWS_FILE).read_text().splitlines()]
    assert kept == [GOOD.name, BAD.name]


@pytest.mark.parametrize("name", CHECKS)
def test_the_rows_of_a_check_can_be_judged_again_from_the_samples_on_disk(name: str, tmp_path: Path) -> None:
    (failure, *_), judge = FAILURES[name], CHECKS[name].judge
    rows, runs = run_check(name, Check(lambda *_: failure.found, judge), None, lambda _: None)
    selftest = runner._Selftest(SETTINGS, tmp_path, Console(file=io.StringIO()))
    event = Event(name, rows=rows, runs=runs)
    selftest.take(msgspec.json.decode(msgspec.json.encode(event), type=Event))  # as from the worker
    (line,) = (tmp_path / runner.SAMPLES_FILE).read_text().splitlines()
    (run,) = json.loads(line)["runs"]
    kinds = get_type_hints(CHECKS[name].measure)["return"]
    assert judge(read_again(run["samples"], kinds)) == rows
    assert "fail" in {row.verdict for row in rows}


def read_again(pairs: list[Any], kinds: Any) -> dict[Any, list[Any]]:
    """Samples of the types that a check measures; counts are pairs in the file."""
    key, samples = get_args(kinds)
    if samples == list[Counter[Place]]:
        counts = msgspec.convert(pairs, list[tuple[key, list[list[tuple[Place, int]]]]])  # type: ignore[valid-type]
        return {step: [Counter(dict(one)) for one in own] for step, own in counts}
    return dict(msgspec.convert(pairs, list[tuple[key, samples]]))  # type: ignore[valid-type]


@pytest.mark.parametrize(
    ("rows", "complete", "outcome"),
    [
        ([GOOD, GPU], True, "passed"),
        ([GOOD, OPEN], True, "undecided"),
        ([GOOD, OPEN, BAD], True, "failed"),
        ([GOOD], False, "partial"),
        ([BAD], False, "failed"),
    ],
)
def test_passed_is_said_only_of_a_complete_selftest_without_failed_and_undecided_rows(
    rows: list[Row], complete: bool, outcome: str
) -> None:
    assert runner.outcome_of(runner.tally(rows, runner.ALL_CHECKS), complete) == outcome


@pytest.mark.parametrize(
    ("settings", "facts", "git", "not_run", "reason"),
    [
        ({}, {}, {}, [], None),
        ({}, {}, {}, ["added", "parts"], "2 of 14 checks were not run"),
        ({}, {}, {"dirty": True}, [], "uncommitted changes"),
        ({}, {}, {"commit": None}, [], "the commit is unknown"),
        ({}, {"dtype": "bfloat16"}, {}, [], "dtype is bfloat16"),
        ({"model": "small"}, {}, {}, [], "model is small"),
        ({"modes": ["eager", "compiled"]}, {}, {}, [], "modes is eager,compiled"),
        ({"batch_sizes": [1]}, {}, {}, [], "batch_sizes is 1"),
    ],
)
def test_anything_but_all_checks_at_the_defaults_of_a_clean_commit_is_partial_and_says_why(
    settings: dict[str, object],
    facts: dict[str, str],
    git: dict[str, object],
    not_run: list[str],
    reason: str | None,
) -> None:
    chosen = Settings.model_validate({"modes": swept_modes("cpu"), **settings})
    reasons = runner.why_incomplete(chosen, {**FACTS, **facts}, {**GIT, **git}, not_run)
    assert reasons == ([reason] if reason else [])


def test_an_unknown_check_is_refused_with_those_there_are() -> None:
    assert runner.choose_checks(["added", "injected"]) == ["injected", "added"]
    assert runner.choose_checks(None) == list(runner.ALL_CHECKS)
    with pytest.raises(ValueError, match=r"no check 'injectd': try some of injected, "):
        runner.choose_checks(["injectd"])
