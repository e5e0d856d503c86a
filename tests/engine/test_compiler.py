"""Compiled code is found again, or a mode is tried without it; what shows a mode to be what its row says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import torch
from torch import nn
from torch._dynamo import config as dynamo_config
from torch._dynamo.exc import Unsupported
from torch._inductor.exc import InvalidCxxCompiler
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from models.checkpoint import Checkpoint
from service.engine import loop as engine_run
from service.engine import warmup
from service.engine.compiler import CacheBroken, CacheRetry, ColdStarts, CompileCounts, unlike
from service.engine.inbox import LocalInbox
from service.engine.step_shares import StepShares
from service.engine.warmup import ConfiguredMode, Warmup, verify_graph_replay
from service.front.supervisor import EXIT_CACHE_DISCARDED
from service.measure.compiled_library import BuildError
from service.modes import MODES, Effect, Mode
from service.records import PHASES, EngineSettings, ModeStatus, Parity, Phase
from service.step.buffers import CALLS_TO_CAPTURE, Arguments, Buffers, allocate
from service.step.callables import Step
from service.step.compile_cache import HEADERS, code_of, compile_cache
from service.step.parity import ParityCheck
from service.step.process_state import prepare_process
from service.workloads import GENERATE
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


# What shows that a mode is what its row says, and what its status says where nothing does


SKIPPED = "CUDA graphs were skipped: "


@pytest.mark.parametrize(
    ("mode", "decode", "prefill", "skips", "effective", "reason"),
    [
        ("reduce-overhead", 1, 1, 0, "reduce-overhead", None),
        ("reduce-overhead", 0, 1, 0, "compiled", SKIPPED + "0 replays per decode step at batch 1"),
        ("reduce-overhead", 1, 2, 0, "compiled", SKIPPED + "2 replays per prefill step at batch 1"),
        ("reduce-overhead", 1, 1, 2, "compiled", SKIPPED + "torch gave them up for 2 compiled callables"),
        # What the service captures it replays itself, or raises.
        ("cuda-graph", 0, 0, 0, "cuda-graph", None),
    ],
)
def test_a_mode_keeps_its_name_where_each_step_replays_one_graph(
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    decode: int,
    prefill: int,
    skips: int,
    effective: str,
    reason: str | None,
) -> None:
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: None)

    def replaying(count: int) -> Any:
        return lambda *_: [torch.cuda.CUDAGraph.replay(cast("Any", None)) for _ in range(count)]

    row = MODES[mode]
    status = ModeStatus(mode=mode, removes=row.removes, state="warming", effective=row.cuda.name)
    one = ConfiguredMode(row, status)
    one.steps.update({("decode", 1): replaying(decode), ("prefill", 1): replaying(prefill)})
    buffers = allocate(Checkpoint("tiny").build(max_batch=1), [1], prefill_chunk=32)
    verify_graph_replay(one, buffers, skips)
    assert (one.status.effective, one.status.reason) == (effective, reason)


COMPILED = CompileCounts(graphs=4, wrappers=4)


@pytest.mark.parametrize(
    ("name", "seen", "found"),
    [
        ("compiled", COMPILED, None),
        ("reduce-overhead", replace(COMPILED, cpp_wrappers=4), None),
        ("max-autotune", replace(COMPILED, cpp_wrappers=4, frozen=4), None),
        ("inference_mode", CompileCounts(), None),
        ("compiled", CompileCounts(), "of 4 callables 0 were compiled"),
        ("compiled", replace(COMPILED, graphs=3), "of 4 callables 3 were compiled"),
        ("compiled", replace(COMPILED, wrappers=0), "of 4 callables 0 were compiled by Inductor"),
        ("compiled", replace(COMPILED, cpp_wrappers=4), "4 of 4 wrappers are C\\+\\+"),
        ("compiled", replace(COMPILED, frozen=1), "1 of 4 graphs have the weights as constants"),
        ("reduce-overhead", COMPILED, "0 of 4 wrappers are C\\+\\+"),
        ("max-autotune", replace(COMPILED, cpp_wrappers=4), "0 of 4 graphs have the weights as constants"),
    ],
)
def test_a_mode_that_was_counted_as_another_one_says_as_what_and_what_to_do_and_no_other_does(
    monkeypatch: pytest.MonkeyPatch, name: str, seen: CompileCounts, found: str | None
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_SOMETHING", "1")
    why = unlike(MODES[name].cpu, 4, seen)
    assert (why is None) == (found is None)
    if why is not None and found is not None:
        assert re.search(found, why)
        assert "start the service without TORCHINDUCTOR_SOMETHING=1" in why


@pytest.mark.slow
@pytest.mark.usefixtures("restored_globals")
@pytest.mark.parametrize("off", ["TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE"])
def test_a_mode_that_compiles_nothing_fails_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off: str
) -> None:
    monkeypatch.setenv(off, "1")
    with dynamo_config.patch(disable=off == "TORCH_COMPILE_DISABLE"):  # which torch reads as it is imported
        found = serve(tmp_path, [], modes=["eager", "compiled", "reduce-overhead"], batch_sizes=[1]).modes
    assert found["eager"].state == "ready"
    for mode in ("compiled", "reduce-overhead"):
        assert (found[mode].state, found[mode].cache, found[mode].compilations) == ("failed", None, [])
        assert f"start the service without {off}=1" in str(found[mode].detail)


SERVE = """
import sys
from pathlib import Path
from tests.engine.serving import serve
from service.step.process_state import prepare_process
prepare_process(sys.argv[1])
inbox = serve(Path(sys.argv[1]), [], modes=["eager", "compiled"], batch_sizes=[1])
from torch._dynamo.utils import counters
mode = inbox.modes["compiled"]
print(mode.state, mode.detail, mode.cache, counters["launchbound"]["cpp_wrappers"])
"""


@pytest.mark.long
@pytest.mark.compiles
def test_torchs_variables_do_not_make_one_mode_what_another_one_is(tmp_path: Path) -> None:
    """Although the caches are off as well: then every start is a cold one, and says so."""
    names = ("CPP_WRAPPER", "FREEZING", "MAX_AUTOTUNE", "COORDINATE_DESCENT_TUNING", "CUDAGRAPHS")
    others = {"TORCHDYNAMO_SUPPRESS_ERRORS": "1", "TORCH_COMPILE_OVERRIDE_BACKENDS": ">=0:eager"}
    environment = {f"TORCHINDUCTOR_{name}": "1" for name in names} | others
    environment["TORCH_COMPILE_FORCE_DISABLE_CACHES"] = "1"
    done = subprocess.run(
        [sys.executable, "-c", SERVE, str(tmp_path)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "ready None cold 0"


Shape = tuple[int, int]
"""Tokens per row, and positions of the cache."""


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return Checkpoint("tiny").build(max_batch=1)


@pytest.fixture(scope="module")
def buffers(model: nn.Module) -> Buffers:
    return allocate(model, [1], prefill_chunk=64)[1]  # type: ignore[arg-type]


def shape(arguments: Arguments) -> Shape:
    return arguments[0].shape[1], arguments[3][0][0].shape[1]


def called(buffers: Buffers, name: str, folder: Path) -> Counter[Shape]:
    """How often the steps of a mode are called in each shape while it is captured on CUDA."""
    calls: Counter[Shape] = Counter()

    def build(_: Mode) -> Callable[..., None]:
        return lambda *arguments: calls.update([shape(arguments)])  # type: ignore[arg-type]

    loaded = SimpleNamespace(device=torch.device("cuda"))
    workload = SimpleNamespace(
        kind=GENERATE, may_break=False, inputs={1: buffers}, loaded=loaded, build=build
    )
    cold_starts, shares = ColdStarts(folder, "key"), StepShares(folder, missing="nothing is sampled here")
    made = Warmup([name], workload, lambda _: None, cold_starts, shares, None)  # type: ignore[arg-type]
    for _ in made.serving(made.modes[name]):
        continue
    return calls


@pytest.mark.parametrize(
    ("mode", "times"),
    [
        ("eager", 1),
        ("no_grad", 1),
        ("inference_mode", 1),
        ("compiled", 1),
        ("reduce-overhead", CALLS_TO_CAPTURE - 1),
    ],
)
def test_on_cuda_every_mode_is_called_in_every_shape(
    buffers: Buffers, mode: str, times: int, tmp_path: Path
) -> None:
    shapes = {shape(arguments) for phase in PHASES for arguments in buffers.shapes(phase)}
    calls = called(buffers, mode, tmp_path)
    assert calls.keys() == shapes
    assert min(calls.values()) == times
