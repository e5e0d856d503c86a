"""A second process compiles some modes from an empty cache; the engine loads what it has compiled."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator, Iterator
from math import inf
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from service.engine import second_compiler as module
from service.engine.parts import EngineParts, build_parts
from service.engine.second_compiler import SecondCompiler, allowed_cpus, free_memory_bytes
from service.records import PHASES, EngineSettings, ModeStatus, Phase
from service.step.compile_cache import code_of
from tests.engine.serving import settings
from tests.support.whole_service import write_small_tiny

BOTH = ["eager", "compiled", "reduce-overhead"]
NAMES = [f"reduce-overhead {phase} {batch}" for batch in (2, 1) for phase in ("decode", "prefill")]
CLAIMS = """
import sys
from service.engine.second_compiler import Claims
claims = Claims(int(sys.argv[1]), ["reduce-overhead"], ["prefill", "decode"], [1, 2])
assert claims.claim("reduce-overhead prefill 1") and claims.claim("reduce-overhead decode 1")
"""


@pytest.fixture
def failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SecondCompiler]:
    """Its process has compiled the last callable of `reduce-overhead`, claimed the one before, and failed."""
    told = msgspec.json.encode(module.Compiled(NAMES[-1], 3.5)).decode()
    script = CLAIMS + f"print({told!r}); sys.exit(9)"
    monkeypatch.setattr(module, "owned", lambda command: [sys.executable, "-c", script, command[-1]])
    there = SecondCompiler(settings(tmp_path, batch_sizes=[1, 2]), ["reduce-overhead"], PHASES)
    there._process.wait()
    yield there
    there.close()


def seconds_of(waiting: Generator[None, None, float | None]) -> float | None:
    while True:
        try:
            next(waiting)
        except StopIteration as end:
            seconds: float | None = end.value
            return seconds


def test_what_it_left_when_it_failed_is_compiled_by_the_engine_and_the_log_says_so(
    failed: SecondCompiler, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {name: seconds_of(failed.compiled(name)) for name in (*NAMES, "compiled decode 1")}
    assert found == {**dict.fromkeys(found), NAMES[-1]: 3.5}
    said = capsys.readouterr().err
    assert said.count("ended with code 9: the engine compiles what it left") == 1


@pytest.fixture
def parts(tmp_path: Path, restored_globals: None) -> EngineParts:
    return build_parts(settings(tmp_path, modes=BOTH), lambda _: None)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[EngineSettings, list[str], tuple[Phase, ...]]]:
    """What would have been started, on a machine with cores to spare."""
    found: list[tuple[EngineSettings, list[str], tuple[Phase, ...]]] = []

    def start(*given: object) -> SimpleNamespace:
        found.append(given)  # type: ignore[arg-type]
        return SimpleNamespace()

    monkeypatch.setattr(module, "SecondCompiler", start)
    monkeypatch.setattr(module, "physical_cores", lambda _: 2)
    monkeypatch.setattr(module, "allowed_cpus", lambda: inf)
    return found


Asked = list[tuple[EngineSettings, list[str], tuple[Phase, ...]]]


def test_what_can_be_loaded_from_the_cache_is_compiled_by_both(parts: EngineParts, asked: Asked) -> None:
    module.second_compiler(parts)
    ((chosen, modes, phases),) = asked
    assert modes == ["compiled", "reduce-overhead"]
    assert phases == PHASES
    assert parts.loaded.linears is not None
    assert chosen.linears == parts.loaded.linears.layout
    assert module._shared(["eager", "compiled", "max-autotune", "aot-inductor"]) == [
        "compiled",
        "aot-inductor",
    ]


def test_none_is_started_where_code_is_there_or_a_core_or_memory_is_missing(
    parts: EngineParts, asked: Asked, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    missing = {"physical_cores": lambda _: 1, "allowed_cpus": lambda: 1.5, "free_memory_bytes": lambda: 2**20}
    for name, limited in missing.items():
        with monkeypatch.context() as here:
            here.setattr(module, name, limited)
            assert module.second_compiler(parts) is None
    (code_of(parts.settings.cache_folder, parts.settings.model) / "ab").mkdir()
    assert module.second_compiler(parts) is None
    assert asked == []


ENGINE = """
import sys
from time import sleep
import msgspec
from service.engine.inbox import LocalInbox, local_job
from service.engine.loop import Engine
from service.engine.second_compiler import SecondCompiler
from service.records import PHASES, EngineSettings
from service.step.process_state import prepare_process

settings = msgspec.json.decode(sys.argv[1], type=EngineSettings)
prepare_process(settings.cache_folder, settings.model)
inbox = LocalInbox([local_job("a", "compiled", ["def mean"], 2)])
engine = Engine(settings, inbox)
there = SecondCompiler(settings, ["compiled"], PHASES)
assert there._claims.claim("compiled decode 1")
while not there._seconds and there._process.poll() is None:
    sleep(0.1)
    there._read()
engine.parts.warmup.start_elsewhere = lambda: there
engine.run()
assert there._process.returncode is not None, "it was waited for"
print(msgspec.json.encode((inbox.outcomes[0].kind, inbox.modes["compiled"], there._seconds)).decode())
"""


@pytest.mark.compiles
def test_an_engine_compiles_what_it_claimed_and_loads_what_the_second_process_compiled(
    tmp_path: Path, common_cache: Path
) -> None:
    model = str(write_small_tiny(tmp_path, hidden=48))
    modes = ["eager", "compiled"]
    chosen = settings(tmp_path, model=model, modes=modes, batch_sizes=[1], cache_folder=str(common_cache))
    ran = subprocess.run(
        [sys.executable, "-c", ENGINE, msgspec.json.encode(chosen).decode()],
        capture_output=True,
        text=True,
        check=True,
    )
    kind, mode, seconds = msgspec.json.decode(ran.stdout, type=tuple[str, ModeStatus, dict[str, float]])
    assert kind == "ok"
    assert mode.cache == "cold"
    decode, prefill = mode.compilations
    # A callable that was missed in the cache would have the time that it took in the engine.
    assert seconds == {"compiled prefill 1": prefill.seconds}
    assert decode.phase == "decode"
    assert all(one.cold and one.cold_seconds == one.seconds for one in mode.compilations)


def test_the_limits_of_the_container_hold_where_there_are_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GROUP", tmp_path)
    assert (allowed_cpus(), free_memory_bytes()) == (inf, inf)
    for cpus, memory, expected in (("max", "max", (inf, inf)), ("150000", "900", (1.5, 800))):
        (tmp_path / "cpu.max").write_text(f"{cpus} 100000\n")
        (tmp_path / "memory.max").write_text(f"{memory}\n")
        (tmp_path / "memory.current").write_text("100\n")
        assert (allowed_cpus(), free_memory_bytes()) == expected
