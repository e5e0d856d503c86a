"""A mode that fails on compiled code of an earlier start is tried once more, without it."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from service.engine import life, warmup
from service.engine.cache_doubt import CacheBroken, CacheDoubt
from service.engine.capture import Capture
from service.engine.configured_mode import ConfiguredMode
from service.engine.local_inbox import LocalInbox
from service.engine.parity_check import ParityCheck
from service.front.supervisor import EXIT_CACHE_DISCARDED
from service.protocol.status import Parity
from service.step.compile_cache import compile_cache
from service.step.process_state import prepare_process
from tests.engine.serving import serve, settings


def with_code(folder: Path) -> Path:
    (folder / "ab").mkdir()
    (folder / "ab" / "cabc.main.so").write_bytes(b"\x7fELF cut off")
    return folder


def test_a_failure_on_code_from_before_puts_the_blame_on_it(tmp_path: Path) -> None:
    with pytest.raises(CacheBroken, match="mode compiled failed on compiled code of an earlier start"):
        CacheDoubt(with_code(tmp_path), "key").failed("compiled")


def test_with_the_code_no_record_goes_of_what_failed_or_of_other_models(tmp_path: Path) -> None:
    CacheDoubt(tmp_path, "key").failed("max-autotune")
    other = tmp_path / "0123-linears.json"
    other.write_text("{}")
    with pytest.raises(CacheBroken):
        CacheDoubt(with_code(tmp_path), "key").failed("compiled")
    assert not (tmp_path / "ab").exists()
    assert other.exists()
    CacheDoubt(with_code(tmp_path), "key").failed("max-autotune")


def test_where_the_code_cannot_be_removed_the_mode_fails_and_the_remedy_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(folder: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("service.step.compile_cache.shutil.rmtree", refused)
    CacheDoubt(with_code(tmp_path), "key").failed("compiled")
    assert f"{tmp_path} cannot be removed (Permission denied): remove it" in capsys.readouterr().err


def test_what_fails_without_such_code_is_not_tried_again_for_it_later(tmp_path: Path) -> None:
    CacheDoubt(tmp_path, "key").failed("compiled")
    later = CacheDoubt(with_code(tmp_path), "key")
    later.failed("compiled")
    with pytest.raises(CacheBroken):
        later.failed("max-autotune")
    with pytest.raises(CacheBroken):
        CacheDoubt(with_code(tmp_path), "of another model").failed("compiled")


def test_what_is_out_of_parity_without_such_code_is_not_tried_again_for_it_later(tmp_path: Path) -> None:
    CacheDoubt(tmp_path, "key").judged("compiled", passed=False)
    CacheDoubt(with_code(tmp_path), "key").judged("compiled", passed=False)


def test_a_mode_that_compiled_since_is_in_doubt_again(tmp_path: Path) -> None:
    CacheDoubt(tmp_path, "key").failed("compiled")
    CacheDoubt(tmp_path, "key").judged("compiled", passed=True)
    with pytest.raises(CacheBroken):
        CacheDoubt(with_code(tmp_path), "key").failed("compiled")


BROKEN = "inference_mode"
"""The second of two modes: stands for one that is compiled, and that fails as it is."""


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup, "load_compiler", lambda device: None)
    monkeypatch.setattr(warmup.Warmup, "_compiles", lambda self, configured: configured.mode.name == BROKEN)
    monkeypatch.setattr(life, "prepare_process", lambda folder: None)


def fail_capture(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Have `what` of the broken mode raise what a library raises that was cut off."""

    def failing(self: Capture, configured: ConfiguredMode) -> Generator[None, None, float]:
        if configured.mode.name == BROKEN:
            raise OSError("cabc.main.so: file too short")
        return (yield from original(self, configured))

    original = getattr(Capture, what)
    monkeypatch.setattr(Capture, what, failing)


def fail_parity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the broken mode compute something else, as a library may that was damaged and loads."""

    def run(self: ParityCheck, configured: ConfiguredMode) -> Parity:
        found = original(self, configured)
        return msgspec.structs.replace(found, passed=False) if configured.mode.name == BROKEN else found

    original = ParityCheck.run
    monkeypatch.setattr(ParityCheck, "run", run)


def fail_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the proof of graph replay fail as where the disk does not take the profiler's trace."""

    def run(self: warmup.Warmup) -> Iterator[None]:
        yield from original(self)
        self._proofs.append((self.modes[BROKEN], lambda: json.loads("")))

    original = warmup.Warmup.run
    monkeypatch.setattr(warmup.Warmup, "run", run)


@pytest.mark.slow
@pytest.mark.usefixtures("restored_globals", "compiles")
@pytest.mark.parametrize("fail", [lambda patch: fail_capture(patch, "twins"), fail_proof])
def test_a_twin_or_a_proof_that_fails_fails_its_mode_and_not_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail: Callable[[pytest.MonkeyPatch], None]
) -> None:
    fail(monkeypatch)
    code = with_code(compile_cache(str(tmp_path))) / "ab"
    inbox = LocalInbox([])
    assert life.live(settings(tmp_path, linears="aten", batch_sizes=[1]), inbox) == 0
    assert (inbox.modes["eager"].state, inbox.modes[BROKEN].state) == ("ready", "failed")
    assert list(code.iterdir())


@pytest.mark.slow
@pytest.mark.usefixtures("restored_globals", "compiles")
def test_an_engine_that_nobody_starts_again_fails_the_mode_and_leaves_cache_and_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `launchbound parity`, the selftest and the sections of the GPU check."""
    fail_capture(monkeypatch, "serving")
    folder = with_code(compile_cache(str(tmp_path)))
    inbox = serve(tmp_path, [], linears="aten", batch_sizes=[1])
    assert (inbox.modes["eager"].state, inbox.modes[BROKEN].state) == ("ready", "failed")
    assert list((folder / "ab").iterdir())
    assert not list(folder.glob("*-failed.json"))


@pytest.mark.slow
@pytest.mark.usefixtures("restored_globals", "compiles")
def test_an_engine_empties_the_cache_once_and_then_fails_the_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_capture(monkeypatch, "serving")
    with_code(compile_cache(str(tmp_path)))
    mine = settings(tmp_path, linears="aten", batch_sizes=[1])
    assert life.live(mine, LocalInbox([])) == EXIT_CACHE_DISCARDED
    assert list(compile_cache(str(tmp_path)).iterdir()) == []
    again = LocalInbox([])
    assert life.live(mine, again) == 0
    assert (again.modes["eager"].state, again.modes[BROKEN].state) == ("ready", "failed")
    with_code(compile_cache(str(tmp_path)))
    assert life.live(mine, LocalInbox([])) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("restored_globals", "compiles")
def test_a_mode_out_of_parity_on_code_from_before_is_tried_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_parity(monkeypatch)
    with_code(compile_cache(str(tmp_path)))
    mine = settings(tmp_path, linears="aten", batch_sizes=[1])
    assert life.live(mine, LocalInbox([])) == EXIT_CACHE_DISCARDED
    assert list(compile_cache(str(tmp_path)).iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("restored_globals", "compiles")
def test_a_compiler_that_finds_no_room_fails_the_mode_and_the_others_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(device: torch.device) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(warmup, "load_compiler", no_room)
    inbox = LocalInbox([])
    assert life.live(settings(tmp_path, linears="aten", batch_sizes=[1]), inbox) == 0
    assert (inbox.modes["eager"].state, inbox.modes[BROKEN].state) == ("ready", "failed")
    assert "No space left on device" in str(inbox.modes[BROKEN].detail)


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
