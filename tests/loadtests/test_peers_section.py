"""A report shows what leaving PyTorch would buy, from a comparison of the same model and processor."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.peers.results import PeersError, write_peers
from loadtests.report.peers_section import comparable, peers_section
from loadtests.report.report_files import make_report
from loadtests.run.run_file import SweepRun, read_run
from tests.support.made_peers import made_run
from tests.support.made_results import CLEAR, make_results


def swept(folder: Path) -> Path:
    folder.mkdir()
    return make_results(folder, CLEAR)


def peers_of(sweep: SweepRun, folder: Path) -> Path:
    """A comparison on the machine and model of `sweep`."""
    run = made_run({"eager": 0.040, "compiled": 0.026, "ort": 0.020})
    run.model_hash = sweep.engine["model_hash"]
    run.environment = {"cpu": sweep.environment.get("cpu"), "commit": "0123456789ab"}
    folder.mkdir()
    write_peers(folder, run)
    return folder


@pytest.mark.slow
def test_page_and_text_show_it_where_it_is_given(tmp_path: Path) -> None:
    folder = swept(tmp_path / "sweep")
    make_report(folder)
    for name in ("report.html", "report.md"):
        assert "Outside PyTorch" not in (folder / name).read_text()
    make_report(folder, peers_of(read_run(folder), tmp_path / "peers"))
    for name in ("report.html", "report.md"):
        text = (folder / name).read_text()
        assert "Outside PyTorch" in text
        assert "leaving PyTorch would buy 1.3" in text
        assert "commit 01234567" in text


def test_a_comparison_of_another_processor_is_refused(tmp_path: Path) -> None:
    sweep = read_run(swept(tmp_path / "sweep"))
    peers = peers_of(sweep, tmp_path / "peers")
    assert comparable(peers, sweep).model == "tiny"
    sweep.environment["cpu"] = "another"
    with pytest.raises(PeersError, match="processor"):
        comparable(peers, sweep)


def test_the_table_has_the_fastest_of_both_sides() -> None:
    section = peers_section(made_run({"eager": 0.040, "compiled": 0.026, "ort": 0.020, "ours": 0.001}))
    (line,) = section.lines
    assert (line.mode, line.outside) == ("compiled", "ort")
    assert not peers_section(made_run({"eager": 0.040})).lines
