"""A mode that fails on compiled code of an earlier start is tried once more, without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.engine import life, warmup
from service.engine.cache_doubt import CacheBroken, CacheDoubt
from service.engine.local_inbox import LocalInbox
from service.front.supervisor import EXIT_CACHE_DISCARDED
from service.step.compile_cache import compile_cache
from service.step.process_state import prepare_process
from tests.engine.serving import settings


def with_code(folder: Path) -> Path:
    (folder / "ab").mkdir()
    (folder / "ab" / "cabc.main.so").write_bytes(b"\x7fELF cut off")
    return folder


def test_a_failure_on_code_from_before_puts_the_blame_on_it(tmp_path: Path) -> None:
    with pytest.raises(CacheBroken, match="mode compiled failed on compiled code of an earlier start"):
        CacheDoubt(with_code(tmp_path), "key").failed("compiled")


def test_what_fails_without_such_code_is_not_tried_again_for_it_later(tmp_path: Path) -> None:
    CacheDoubt(tmp_path, "key").failed("compiled")
    later = CacheDoubt(with_code(tmp_path), "key")
    later.failed("compiled")
    with pytest.raises(CacheBroken):
        later.failed("max-autotune")
    with pytest.raises(CacheBroken):
        CacheDoubt(tmp_path, "of another model").failed("compiled")


def test_a_mode_that_compiled_since_is_in_doubt_again(tmp_path: Path) -> None:
    CacheDoubt(tmp_path, "key").failed("compiled")
    CacheDoubt(tmp_path, "key").succeeded("compiled")
    with pytest.raises(CacheBroken):
        CacheDoubt(with_code(tmp_path), "key").failed("compiled")


@pytest.mark.slow
@pytest.mark.usefixtures("restored_globals")
def test_an_engine_empties_the_cache_once_and_then_fails_the_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two modes stands for one that is compiled, and fails as it is."""
    broken = "inference_mode"

    def serving(self: object, configured: warmup.ConfiguredMode) -> object:
        if configured.mode.name == broken:
            raise OSError("cabc.main.so: file too short")
        return original(self, configured)  # type: ignore[arg-type]

    original = warmup.Capture.serving
    monkeypatch.setattr(warmup.Capture, "serving", serving)
    monkeypatch.setattr(warmup, "load_compiler", lambda device: None)
    monkeypatch.setattr(warmup.Warmup, "_compiles", lambda self, configured: configured.mode.name == broken)
    monkeypatch.setattr(life, "prepare_process", lambda folder: None)
    monkeypatch.setattr(warmup.Calibration, "needs_twin", lambda self, mode: mode.name != broken)
    with_code(compile_cache(str(tmp_path)))
    mine = settings(tmp_path, linears="aten", batch_sizes=[1])
    assert life.live(mine, LocalInbox([])) == EXIT_CACHE_DISCARDED
    assert list(compile_cache(str(tmp_path)).iterdir()) == []
    again = LocalInbox([])
    assert life.live(mine, again) == 0
    assert (again.modes["eager"].state, again.modes[broken].state) == ("ready", "failed")
    with_code(compile_cache(str(tmp_path)))
    assert life.live(mine, LocalInbox([])) == 0


def test_an_engine_that_is_told_so_begins_without_the_code_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen(folder: str) -> None:
        found.append(list(compile_cache(folder).iterdir()))
        raise ValueError("enough")

    found: list[list[Path]] = []
    monkeypatch.setattr(life, "prepare_process", seen)
    with_code(compile_cache(str(tmp_path)))
    life.live(settings(tmp_path), LocalInbox([]))
    life.live(settings(tmp_path, discard_compiled=True), LocalInbox([]))
    assert [len(entries) for entries in found] == [1, 0]


def test_the_engine_ends_with_2_and_the_remedy_where_its_cache_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compile_cache(str(tmp_path)).chmod(0o777)
    assert life.live(settings(tmp_path), LocalInbox([])) == life.EXIT_BAD_SETTINGS
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "chmod 700" in line
    assert prepare_process is life.prepare_process
