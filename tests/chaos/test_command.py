"""`make chaos` runs what was chosen, goes on after a row that fails, and keeps a table that says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos import __main__ as command
from tests.chaos.faults import all_faults
from tests.chaos.table import JSON_FILE, MARKDOWN_FILE
from tests.chaos.victim import Fault, Happened, NotPossible


def held(folder: Path) -> Happened:
    assert list(folder.iterdir()) == []
    return Happened("held | on", 1.25, as_must=True, numbers={"p99": 0.5})


def broke(folder: Path) -> Happened:
    return Happened("broke", 2.0, as_must=False)


def raised(folder: Path) -> Happened:
    raise AssertionError("waited too long for its end")


def lacking(folder: Path) -> Happened:
    raise NotPossible("no mounts")


def stopped(folder: Path) -> Happened:
    raise KeyboardInterrupt


FAULTS = {"one": held, "two": broke, "three": raised, "four": lacking, "five": stopped}


@pytest.fixture(autouse=True)
def faults(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [Fault(name, "go on", run) for name, run in FAULTS.items()]
    monkeypatch.setattr(command, "all_faults", lambda soak: made)


def table_of(folder: Path, only: str) -> tuple[int, dict[str, str]]:
    """The exit code, and the verdict of each row."""
    code = command.main(["--only", only, "--out", str(folder)])
    document = json.loads((folder / JSON_FILE).read_text())
    return code, {row["fault"]: row["verdict"] for row in document["rows"]}


def test_what_is_not_as_it_must_be_fails_the_run_and_what_is_not_possible_does_not(tmp_path: Path) -> None:
    assert table_of(tmp_path / "good", "one,four") == (0, {"one": "as it must", "four": "not possible here"})
    failed = {"one": "as it must", "two": "NOT SO", "three": "NOT SO", "four": "not possible here"}
    assert table_of(tmp_path / "bad", "o, three") == (1, failed)


def test_a_run_that_is_stopped_keeps_the_rows_that_ended(tmp_path: Path) -> None:
    assert table_of(tmp_path, "") == (130, dict.fromkeys(("one", "two", "three", "four"), "x") | {
        "one": "as it must", "two": "NOT SO", "three": "NOT SO", "four": "not possible here"})  # fmt: skip


def test_both_files_have_the_machine_the_words_and_whether_all_faults_were_run(tmp_path: Path) -> None:
    command.main(["--only", "one,three", "--out", str(tmp_path)])
    document = json.loads((tmp_path / JSON_FILE).read_text())
    assert document["complete"] is False
    assert {"cpu", "cores", "commit", "torch", "load_average"} <= document["environment"].keys()
    assert document["rows"][0]["numbers"] == {"p99": 0.5}
    assert document["rows"][1]["seconds"] is None
    page = (tmp_path / MARKDOWN_FILE).read_text()
    assert "| one | go on | held \\| on | 1.2 | as it must |" in page
    assert "waited too long for its end | – | NOT SO |" in page
    assert "(a choice of all), of which 1 ended otherwise" in page


def test_a_name_that_no_fault_has_is_refused_with_all_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--only", "one,none", "--out", str(tmp_path / "out")]) == 2
    assert "no fault has 'none' in its name" in (said := capsys.readouterr().err)
    assert all(name in said for name in FAULTS)
    assert not (tmp_path / "out").exists()


def test_every_fault_has_a_name_of_its_own() -> None:
    names = [fault.name for fault in all_faults(120.0)]
    assert len(set(names)) == len(names)
