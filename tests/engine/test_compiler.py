"""Compiled code is found again; a mode that fails on that of an earlier start is tried without it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Generator, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from torch._dynamo.exc import Unsupported
from torch._inductor.exc import InvalidCxxCompiler
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from service.engine import loop as engine_run
from service.engine import warmup
from service.engine.compiler import CacheBroken, CacheRetry
from service.engine.inbox import LocalInbox
from service.engine.warmup import ConfiguredMode, Warmup
from service.front.supervisor import EXIT_CACHE_DISCARDED
from service.measure.compiled_library import BuildError
from service.modes import Effect
from service.records import EngineSettings, Parity, Phase
from service.step.callables import Step
from service.step.compile_cache import HEADERS, code_of, compile_cache
from service.step.parity import ParityCheck
from service.step.process_state import prepare_process
from tests.engine.serving import serve, settings


def with_code(folder: Path) -> Path:
    """The folder of a model's code in `folder`, which holds the records, with a library in it."""
    code = folder if folder.name.startswith("model-") else folder / "model-one"
    (code / "ab").mkdir(parents=True)
    (code / "ab" / "cabc.main.so").write_bytes(b"\x7fELF cut off")
    return code


def without_code(folder: Path) -> Path:
    return folder / "model-one"


def code_in(cache: Path, mine: EngineSettings) -> Path:
    return code_of(str(cache), mine.model)


def test_with_the_code_no_record_goes_of_what_failed_or_of_other_models(tmp_path: Path) -> None:
    CacheRetry(without_code(tmp_path), "key").failed("max-autotune")
    other = tmp_path / "0123-linears.json"
    other.write_text("{}")
    of_another_model = with_code(tmp_path / "model-two")
    headers = with_code(tmp_path).parent / HEADERS
    headers.mkdir()
    with pytest.raises(CacheBroken, match="mode compiled failed on compiled code of an earlier start"):
        CacheRetry(without_code(tmp_path), "key").failed("compiled")
    assert list(without_code(tmp_path).iterdir()) == []
    assert not headers.exists()
    assert other.exists()
    assert list(of_another_model.iterdir())
    CacheRetry(with_code(tmp_path), "key").failed("max-autotune")


def failing(error: Exception) -> Generator[None, None, None]:
    yield
    raise error


@pytest.mark.parametrize("cxx", ["clang++-that-is-not-there", "false"])
def test_a_compiler_that_cannot_compile_fails_the_mode_with_the_remedy_and_removes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cxx: str
) -> None:
    def compiler() -> str:
        if shutil.which(cxx) is None:
            raise InvalidCxxCompiler
        return cxx

    monkeypatch.setattr("service.engine.compiler.get_cpp_compiler", compiler)
    code = with_code(tmp_path)
    retry = CacheRetry(code, "key")
    with pytest.raises(BuildError, match=r"install g\+\+, or set CXX|false cannot build trial"):
        list(retry.watched("compiled", failing(RuntimeError("of the compiler"))))
    assert list(code.iterdir())
    assert not list(tmp_path.glob("*-failed.json"))


@pytest.mark.parametrize("error", [Unsupported("a break"), ConstraintViolationError("made a constant")])
def test_a_model_that_cannot_be_traced_fails_its_mode_and_removes_nothing(
    tmp_path: Path, error: Exception
) -> None:
    code = with_code(tmp_path)
    with pytest.raises(type(error)):
        list(CacheRetry(code, "key").watched("compiled", failing(error)))
    assert list(code.iterdir())
    assert not list(tmp_path.glob("*-failed.json"))


def test_what_fails_without_such_code_is_not_tried_again_for_it_until_it_has_compiled(tmp_path: Path) -> None:
    CacheRetry(without_code(tmp_path), "key").failed("compiled")
    later = CacheRetry(with_code(tmp_path), "key")
    later.failed("compiled")
    later.judged("compiled", passed=False)
    with pytest.raises(CacheBroken):
        later.failed("max-autotune")
    with pytest.raises(CacheBroken):
        CacheRetry(with_code(tmp_path), "of other sizes").failed("compiled")
    CacheRetry(without_code(tmp_path), "key").judged("compiled", passed=True)
    with pytest.raises(CacheBroken):
        CacheRetry(with_code(tmp_path), "key").failed("compiled")


BROKEN = "inference_mode"
"""The second of two modes: stands for one that is compiled, and that fails as it is."""


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup, "load_compiler", lambda device: None)

    def effect(self: Warmup, configured: ConfiguredMode) -> Effect:
        own = original(self, configured)
        return replace(own, package={}) if configured.mode.name == BROKEN else own

    original = Warmup.effect
    monkeypatch.setattr(Warmup, "effect", effect)
    monkeypatch.setattr(engine_run, "prepare_process", lambda *_: None)


def fail_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the capture of the broken mode raise what a library raises that was cut off."""

    def failing(self: Warmup, configured: ConfiguredMode) -> Generator[None, None, float]:
        if configured.mode.name == BROKEN:
            raise OSError("cabc.main.so: file too short")
        return (yield from original(self, configured))

    original = Warmup.serving
    monkeypatch.setattr(Warmup, "serving", failing)


@pytest.mark.slow
@pytest.mark.usefixtures("restored_globals", "compiles")
def test_an_engine_that_nobody_starts_again_fails_the_mode_and_leaves_cache_and_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `launchbound parity`, the selftest and the sections of the GPU check."""
    fail_capture(monkeypatch)
    folder = with_code(code_in(tmp_path, settings(tmp_path)))
    inbox = serve(tmp_path, [], batch_sizes=[1])
    assert (inbox.modes["eager"].state, inbox.modes[BROKEN].state) == ("ready", "failed")
    assert list((folder / "ab").iterdir())
    assert not list(tmp_path.rglob("*-failed.json"))


@pytest.mark.slow
@pytest.mark.usefixtures("restored_globals", "compiles")
def test_an_engine_empties_the_cache_once_and_then_fails_the_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_capture(monkeypatch)
    mine = settings(tmp_path, batch_sizes=[1])
    code = with_code(code_in(tmp_path, mine))
    assert engine_run.run_engine(mine, LocalInbox([])) == EXIT_CACHE_DISCARDED
    assert list(code.iterdir()) == []
    again = LocalInbox([])
    assert engine_run.run_engine(mine, again) == 0
    assert (again.modes["eager"].state, again.modes[BROKEN].state) == ("ready", "failed")
    with_code(code)
    assert engine_run.run_engine(mine, LocalInbox([])) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("restored_globals", "compiles")
def test_a_mode_out_of_parity_on_code_from_before_is_tried_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its library may have been damaged, and load."""

    def run(self: ParityCheck, steps: Mapping[tuple[Phase, int], Step]) -> Parity:
        ran.append(1)
        return msgspec.structs.replace(original(self, steps), passed=len(ran) == 1)  # BROKEN is the second

    ran: list[int] = []
    original = ParityCheck.run
    monkeypatch.setattr(ParityCheck, "run", run)
    mine = settings(tmp_path, batch_sizes=[1])
    code = with_code(code_in(tmp_path, mine))
    assert engine_run.run_engine(mine, LocalInbox([])) == EXIT_CACHE_DISCARDED
    assert list(code.iterdir()) == []


def test_an_engine_that_is_told_so_begins_without_the_code_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen(folder: str, model: str) -> None:
        found.append(list(code_of(folder, model).iterdir()))
        raise ValueError("enough")

    found: list[list[Path]] = []
    monkeypatch.setattr(engine_run, "prepare_process", seen)
    with_code(code_in(tmp_path, settings(tmp_path)))
    engine_run.run_engine(settings(tmp_path), LocalInbox([]))
    engine_run.run_engine(settings(tmp_path, discard_compiled=True), LocalInbox([]))
    assert [len(entries) for entries in found] == [1, 0]


def test_the_engine_ends_with_2_and_the_remedy_where_its_cache_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compile_cache(str(tmp_path)).chmod(0o777)
    assert engine_run.run_engine(settings(tmp_path), LocalInbox([])) == engine_run.EXIT_BAD_SETTINGS
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "chmod 700" in line
    assert prepare_process is engine_run.prepare_process


HOUSE = Path(__file__).parents[2]

COMPILE_A_STEP = """
import json, sys
from service.step.process_state import prepare_process
prepare_process(sys.argv[1])
import torch
from torch._dynamo.utils import counters
from models.config import Config
from models.transformer import Transformer
from service.modes import MODES
from service.step.buffers import allocate
from service.step.callables import build_step
config = Config(layers=1, width=32, heads=2, kv_heads=1, head_width=16, hidden=64, vocabulary=64)
model = Transformer(config, 1).eval()
with torch.no_grad():
    build_step(MODES["compiled"], model)(*allocate(model, [1], 32)[1].arguments("decode"))
autograd, inductor = counters["aot_autograd"], counters["inductor"]
hits = autograd["autograd_cache_hit"], inductor["fxgraph_cache_hit"]
print(json.dumps([*hits, autograd["autograd_cache_miss"] + inductor["fxgraph_cache_miss"]]))
"""


def copy_of_the_code(folder: Path) -> Path:
    for package in ("models", "service"):
        shutil.copytree(HOUSE / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def compile_a_step(code: Path, cache: Path, **environment: str) -> list[int]:
    """Compile a decode step in a new process; hits of AOTAutograd and Inductor in `cache`, and misses."""
    inherited = {name: value for name, value in os.environ.items() if name != "CI"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE_A_STEP, str(cache)],
        env={**inherited, "PYTHONPATH": str(code), **environment},
        cwd=code,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[int] = json.loads(done.stdout)
    return found


@pytest.mark.compiles
@pytest.mark.long
def test_the_same_code_in_another_folder_and_environment_is_found_and_changed_code_is_not(
    tmp_path: Path,
) -> None:
    cache = tmp_path / "cache"
    assert compile_a_step(copy_of_the_code(tmp_path / "first"), cache) == [0, 0, 2]
    second = copy_of_the_code(tmp_path / "second")
    assert compile_a_step(second, cache, CI="true") == [1, 1, 0]
    file = second / "models" / "transformer.py"
    source = file.read_text()
    assert "F.silu(gate) * up" in source
    file.write_text(source.replace("F.silu(gate) * up", "F.gelu(gate) * up"))
    assert compile_a_step(second, cache, CI="true") == [0, 0, 2]
