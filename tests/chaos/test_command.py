"""`make chaos` runs what was chosen, goes on after a row that fails, and keeps a table that says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import __main__ as command
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


def rows_of(folder: Path, only: str) -> tuple[int, dict[str, str], dict[str, Any]]:
    """The exit code, the verdict of each row, and the whole document."""
    code = command.main(["--only", only, "--out", str(folder)])
    document = json.loads((folder / JSON_FILE).read_text())
    return code, {row["fault"]: row["verdict"] for row in document["rows"]}, document


VERDICTS = {"one": "as it must", "two": "NOT SO", "three": "NOT SO", "four": "not possible here"}


def test_what_is_not_as_it_must_be_fails_the_run_and_what_is_not_possible_does_not(tmp_path: Path) -> None:
    good, failed = rows_of(tmp_path / "good", "one,four"), rows_of(tmp_path / "bad", "o, three")
    assert good[:2] == (0, {"one": "as it must", "four": "not possible here"})
    assert failed[:2] == (1, VERDICTS)
    assert rows_of(tmp_path / "stopped", "")[:2] == (130, VERDICTS)  # those that ended are kept
    document, page = failed[2], (tmp_path / "bad" / MARKDOWN_FILE).read_text()
    assert document["complete"] is False
    assert {"cpu", "cores", "commit", "torch", "load_average"} <= document["environment"].keys()
    assert document["rows"][0]["numbers"] == {"p99": 0.5}
    assert document["rows"][2]["seconds"] is None
    assert "| one | go on | held \\| on | 1.2 | as it must |" in page
    assert "waited too long for its end | – | NOT SO |" in page
    assert "(a choice of all), of which 2 ended otherwise" in page
