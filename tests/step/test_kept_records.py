"""A record that cannot be read or kept costs its measurement, and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from service.engine.compiler import ColdStarts
from service.step.compile_cache import keep_record, read_record, warn

Seconds = dict[str, float]


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    keep_record(tmp_path / "a.json", {"decode": 1.5})
    assert read_record(tmp_path / "a.json", Seconds) == {"decode": 1.5}
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_there_may_be_none(tmp_path: Path) -> None:
    assert read_record(tmp_path / "a.json", Seconds) is None


@pytest.mark.parametrize("content", [b"", b"{", b'{"decode": "soon"}'])
def test_one_that_is_broken_is_removed_and_made_anew(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(content)
    assert read_record(file, Seconds) is None
    assert not file.exists()
    assert "is made anew" in capsys.readouterr().err


def test_a_disk_that_refuses_costs_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = ColdStarts(tmp_path / "missing", "key")
    assert kept.recorded("decode", 1.5) == 1.5
    assert "was not kept" in capsys.readouterr().err


def test_a_warning_that_the_disk_does_not_take_either_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def write(self, _: str) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stderr", Full())
    warn("a trace was not kept")
