"""Limits of a container are read where Linux writes them, the narrowest of nested ones."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest

from service.engine import second_compiler
from service.engine.second_compiler import allowed_cpus, free_memory_bytes


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The group of this process, in another one."""
    own = tmp_path / "fs" / "outer" / "own"
    own.mkdir(parents=True)
    (tmp_path / "member").write_text("1:name=systemd:/legacy\n0::/outer/own\n")
    monkeypatch.setattr(second_compiler, "ROOT", tmp_path / "fs")
    monkeypatch.setattr(second_compiler, "MEMBERSHIP", tmp_path / "member")
    return own


def test_without_a_limit_all_is_allowed(group: Path) -> None:
    assert (allowed_cpus(), free_memory_bytes()) == (inf, inf)
    (group / "cpu.max").write_text("max 100000\n")
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("5\n")
    assert (allowed_cpus(), free_memory_bytes()) == (inf, inf)


def test_the_narrowest_of_nested_limits_holds(group: Path) -> None:
    (group / "cpu.max").write_text("400000 100000\n")
    (group.parent / "cpu.max").write_text("150000 100000\n")
    assert allowed_cpus() == 1.5
    for folder, most, now in ((group, 900, 100), (group.parent, 1000, 700)):
        (folder / "memory.max").write_text(f"{most}\n")
        (folder / "memory.current").write_text(f"{now}\n")
    assert free_memory_bytes() == 300


def test_more_than_is_allowed_leaves_nothing(group: Path) -> None:
    (group / "memory.max").write_text("100\n")
    (group / "memory.current").write_text("120\n")
    assert free_memory_bytes() == 0


def test_where_linux_says_nothing_of_groups_there_is_no_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(second_compiler, "ROOT", tmp_path / "none")
    monkeypatch.setattr(second_compiler, "MEMBERSHIP", tmp_path / "missing")
    assert (allowed_cpus(), free_memory_bytes()) == (inf, inf)
