"""What `make evidence` keeps of a machine and what it says, over results that are made up."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from loadtests.compare.page import make_picture
from tests.support import machine_evidence
from tests.support.machine_evidence import Evidence, clone_of
from tests.support.made_plans import make_plan, make_report
from tests.support.made_results import CLEAR, make_results

PLAN = make_plan("quick", 1, ["eager", "compiled"], [1])


class MadeUp(Evidence):
    """Its commands leave results of made-up requests; `outcome` is the selftest's."""

    def __init__(self, folder: Path, outcome: str = "passed") -> None:
        clone = folder / "clone"
        clone.mkdir()
        super().__init__(clone, folder / "kept" / "20260101-epyc2-01234567")
        self.commands: list[tuple[str, ...]] = []
        self.outcome = outcome

    def _run(self, *command: str, failed: int = 1) -> None:
        self.commands.append(command)
        if command == ("make", "bench"):
            self._sweep(self._clone / "results" / "20260101T000000Z-01234567")
        elif command[1] == "selftest":
            folder = self._clone / "results" / "selftest-20260101T000000Z-01234567"
            folder.mkdir()
            counts = {"passed": 115, "failed": 0, "not_measurable": 3}
            (folder / "selftest.json").write_text(json.dumps({"counts": counts, "outcome": self.outcome}))
        elif command[1] == "sweep":
            self._sweep(Path(command[command.index("--out") + 1]))
        elif "--out" in command:
            make_picture([Path(one) for one in command[2 : command.index("--out")]], Path(command[-1]))

    def _sweep(self, folder: Path) -> None:
        make_results(folder, CLEAR, plan=PLAN, seed=len(self.commands))
        make_report(folder)
        (folder / "service.log").write_text("a log")


@pytest.mark.slow
def test_all_that_the_table_of_machines_names_is_kept(tmp_path: Path) -> None:
    evidence = MadeUp(tmp_path)
    evidence.bench()
    evidence.selftest()
    evidence.five_sweeps()
    sweep, together, selftest = sorted((tmp_path / "kept").iterdir())
    assert sweep.name == "20260101-epyc2-01234567"
    assert {"report.md", "report.html", "requests.jsonl", "run.json"} <= {one.name for one in sweep.iterdir()}
    assert not list(sweep.glob("*.log"))
    assert [one.name for one in selftest.iterdir()] == ["selftest.json"]
    assert (together / "README.md").read_text().startswith("# 5 sweeps of one build agree")
    assert sorted(one.name for one in together.iterdir() if one.is_dir()) == [
        f"seed-{n}" for n in range(11, 16)
    ]
    assert sorted(one.name for one in (together / "seed-11").iterdir()) == sorted(machine_evidence.OF_A_SWEEP)
    said = {what: (value, bound) for what, value, bound in evidence.found}
    assert said["selftest"] == ("115 passed, 0 failed, 3 not measurable", "no row fails, complete")
    assert said["five sweeps"][0].startswith("5 sweeps of one build agree: compiled")
    assert said["cells whose requests queued"][1].startswith("0")
    assert [command[1] for command in evidence.commands][:3] == ["bench", "selftest", "report"]
    sweeps = [command for command in evidence.commands if command[1] == "sweep"]
    assert not any("--url" in command for command in sweeps)  # each has a start of its own
    outs = [Path(command[command.index("--out") + 1]) for command in sweeps]
    assert {out.parent.name for out in outs} == {"results"}  # where the selftest is
    assert [command[command.index("--seed") + 1] for command in sweeps] == ["11", "12", "13", "14", "15"]


def test_a_sweep_that_is_not_valid_is_kept_although_make_ends_with_another_code(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    clone.mkdir()
    (clone / "Makefile").write_text("bench:\n\t@exit 1\n")
    make_report(make_results(clone / "results" / "20260101T000000Z-01234567", CLEAR, plan=PLAN, fail=1))
    evidence = Evidence(clone, tmp_path / "kept")
    evidence.bench()
    assert evidence.failed[0] == "make bench"
    assert (tmp_path / "kept" / "requests.jsonl").exists()


def test_a_tree_with_changes_is_refused_and_a_clean_one_cloned(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()

    def git(*arguments: str) -> str:
        own = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        return subprocess.run(
            ["git", *own, *arguments], cwd=root, check=True, capture_output=True, text=True
        ).stdout

    git("init", "--quiet")
    (root / "file").write_text("one")
    git("add", "file")
    git("commit", "--quiet", "--message", "one")
    clone, commit = clone_of(root, tmp_path)
    assert (clone / "file").read_text() == "one"
    assert git("rev-parse", "HEAD").startswith(commit)
    assert len(commit) == 8
    (root / "file").write_text("two")
    with pytest.raises(ValueError, match="commit first"):
        clone_of(root, tmp_path / "again")
