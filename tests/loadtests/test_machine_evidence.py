"""What `make evidence` keeps of a machine and what it says, over results that are made up."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.machine_evidence import Evidence, clone_of
from tests.support.made_plans import make_plan, make_report
from tests.support.made_results import CLEAR, make_results

PLAN = make_plan("quick", 1, ["eager", "compiled"], [1])


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
