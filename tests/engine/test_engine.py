"""The engine without a front: jobs in, outcomes out, and what an error of the device ends."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from models.transformer import Transformer
from service.engine import loop as engine_run
from service.engine import warmup
from service.engine.generation import Generator
from service.engine.inbox import LocalInbox, local_job
from service.engine.outcome import ran_as
from service.engine.parts import build_parts
from service.engine.warmup import ConfiguredMode
from service.front.supervisor import EXIT_BAD_SETTINGS, EXIT_DEVICE_LOST
from service.modes import MODES
from service.records import EngineStatus, Job, ModeStatus, StepProfile, Timings
from service.step import parity
from tests.engine.serving import MODE_NAMES, PROMPT, serve, settings

pytestmark = pytest.mark.usefixtures("restored_globals")


def timings_of(inbox: LocalInbox, index: int = 0) -> Timings:
    timings = inbox.outcomes[index].timings
    assert timings is not None
    return timings


@pytest.mark.slow
def test_every_job_gets_one_outcome_in_order_with_a_split_of_its_wall_time(tmp_path: Path) -> None:
    jobs = [local_job(f"{m}{n}", m, [PROMPT] * n, 5, ignore_eos=True) for m in MODE_NAMES for n in (1, 2)]
    late = msgspec.structs.replace(local_job("late", "eager", [PROMPT], 2), deadline_ns=1)
    inbox = serve(tmp_path, [*jobs, late])
    assert [outcome.id for outcome in inbox.outcomes] == [*(job.id for job in jobs), "late"]
    assert (inbox.outcomes[-1].kind, inbox.outcomes[-1].timings) == ("timeout", None)
    for index in range(len(jobs)):
        timings = timings_of(inbox, index)
        for phase in (timings.prefill, timings.decode):
            assert phase.wall_seconds is not None
            assert phase.dispatch_seconds is not None
            assert phase.kernel_seconds is not None
            assert 0 <= phase.dispatch_seconds <= phase.wall_seconds
            assert phase.dispatch_seconds + phase.kernel_seconds == pytest.approx(phase.wall_seconds)
        assert timings.taken_ns < (timings.first_token_ns or 0) < timings.done_ns


@pytest.mark.slow
def test_one_request_in_so_many_is_profiled_and_any_that_requests_it(tmp_path: Path) -> None:
    """Under an id that would lead out of the folder, too."""
    names = ["0", "1", "2", "3", "4", "../../out"]
    jobs = [local_job(n, "eager", [PROMPT], 4, ignore_eos=True, profile=n in ("2", names[-1])) for n in names]
    inbox = serve(tmp_path / "inside", jobs, profile_every=4)
    traces = tmp_path / "inside" / "traces"
    profiled = [outcome.profile is not None for outcome in inbox.outcomes]
    assert profiled == [False, False, True, True, False, True]
    profile = inbox.outcomes[2].profile
    assert profile is not None
    assert [(entry.phase, entry.steps) for entry in profile] == [("prefill", 1), ("decode", 3)]
    assert all(entry.operators > 50 and entry.kernels is None for entry in profile)
    assert {path.name for path in traces.iterdir()} >= {"2.json", "2.trace.json.gz", "3.json"}
    assert {path.parent for path in tmp_path.rglob("*.trace.json.gz")} == {traces}
    assert (traces / ".._.._out.trace.json.gz").exists()


@pytest.mark.slow
@pytest.mark.compiles
def test_a_recompilation_while_serving_fails_its_job_and_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = torch.compile(lambda x: x + 1, backend="eager", dynamic=False)
    compiled(torch.ones(2))
    monkeypatch.setattr(Generator, "run", lambda *_: compiled(torch.ones(3)))
    inbox = serve(tmp_path, [local_job("a", "eager", [PROMPT], 2)])
    assert inbox.outcomes[0].kind == "error"
    assert [inbox.modes[mode].recompiles for mode in MODE_NAMES] == [1, 0]


def test_a_sample_without_its_graph_launch_is_not_reported_under_the_modes_own_name() -> None:
    status = ModeStatus(mode="reduce-overhead", removes="", state="ready", effective="reduce-overhead")
    configured = ConfiguredMode(MODES["reduce-overhead"], status)

    def profile(launches: float) -> list[StepProfile]:
        return [StepProfile(phase="decode", steps=3, operators=1, graph_launches=launches)]

    assert ran_as(configured, profile(1.0)) == ("reduce-overhead", None)
    assert ran_as(configured, profile(0.0)) == ("compiled", "graph_skipped")
    assert ran_as(configured, None) == ("reduce-overhead", None)


@pytest.mark.slow
def test_what_is_measured_of_the_machine_is_there_once_the_engine_is_warm(tmp_path: Path) -> None:
    parts = build_parts(settings(tmp_path), lambda status: None)
    cold, warm = parts.status(), parts.status(parts.measure())
    assert cold.memory_bandwidth is cold.matrix_rate is None
    assert cold.step_bytes == warm.step_bytes
    assert warm.step_bytes is not None
    assert warm.matrix_rate is not None
    # Float32, the head's table tied to the embedding's and so counted once; norms are left out.
    assert 0.99 < warm.step_bytes.weights / (4 * warm.parameters) < 1
    assert warm.memory_bandwidth is not None
    assert warm.memory_bandwidth.buffer_bytes == warm.step_bytes.weights
    assert f"ATen {torch.backends.cpu.get_cpu_capability()}" in (warm.blas or "")


@pytest.mark.slow
def test_who_else_uses_the_device_is_said_when_the_engine_is_warm_and_again_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = iter([None, "a", "a", "b"])
    monkeypatch.setattr(engine_run, "sharing_note", lambda *_: next(notes, None))
    monkeypatch.setattr(engine_run, "NEWS_SECONDS", 0.0)
    monkeypatch.setattr(engine_run, "SHARING_SECONDS", 0.0)
    said: list[str | None] = []

    def watch(message: object) -> None:
        if isinstance(message, EngineStatus) and message.warm:
            said.append(message.sharing_note)

    jobs = [local_job(name, "inference_mode", [PROMPT], 2) for name in "abcd"]
    engine_run.Engine(
        settings(tmp_path, modes=["inference_mode"], batch_sizes=[1]), LocalInbox(jobs, watch)
    ).run()
    assert said == [None, "a", "b", None]


@pytest.mark.slow
def test_a_context_without_room_behind_a_chunk_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """As a model with a window of one chunk has it."""
    short = settings(tmp_path, context=64, prefill_chunk=64)
    with pytest.raises(ValueError, match="set LAUNCHBOUND_PREFILL_CHUNK to 32"):
        build_parts(short, lambda status: None)
    build_parts(settings(tmp_path, context=64, prefill_chunk=32), lambda status: None)


LOST = [
    torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(...)`"),
]


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*_: object) -> None:
        raise error

    return fail


@pytest.mark.slow
@pytest.mark.parametrize("error", LOST, ids=str)
def test_a_job_that_loses_the_device_ends_the_engine_with_an_exit_code_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    monkeypatch.setattr(Generator, "run", raising(error))
    monkeypatch.setattr(engine_run, "prepare_process", lambda *_: None)
    inbox = LocalInbox([local_job("a", "inference_mode", [PROMPT], 2)])
    chosen = settings(tmp_path, modes=["inference_mode"], batch_sizes=[1])
    assert engine_run.run_engine(chosen, inbox) == EXIT_DEVICE_LOST
    assert str(error) in capsys.readouterr().err
    assert inbox.outcomes == []


@pytest.mark.slow
def test_a_job_without_memory_is_answered_its_tensors_freed_and_the_next_one_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[weakref.ref[torch.Tensor]] = []
    freed: list[bool] = []
    original = Generator.run

    def fail_once(self: Generator, job: Job, *arguments: Any) -> None:
        if held or job.id != "a":  # warm-up has jobs of its own
            original(self, job, *arguments)
            return
        tensor = torch.zeros(8)
        held.append(weakref.ref(tensor))
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    monkeypatch.setattr(Generator, "run", fail_once)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(held[0]() is None))
    jobs = [local_job(name, "inference_mode", [PROMPT], 2, ignore_eos=True) for name in ("a", "b")]
    inbox = serve(tmp_path, jobs, modes=["inference_mode"], batch_sizes=[1])
    assert [outcome.kind for outcome in inbox.outcomes] == ["oom", "ok"]
    assert "out_of_memory" in str(inbox.outcomes[0].problem)
    assert freed == [True]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (IndexError("index 64"), r"Transformer cannot be served: .*IndexError: index 64\); serve another"),
        (
            torch.OutOfMemoryError("CUDA out of memory"),
            "set LAUNCHBOUND_BATCH_SIZES or LAUNCHBOUND_CONTEXT to less",
        ),
    ],
)
def test_a_model_whose_eager_step_fails_is_refused_with_the_remedy(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    remedy: str,
) -> None:
    monkeypatch.setattr(Transformer, "forward", raising(error))
    monkeypatch.setattr(engine_run, "prepare_process", lambda *_: None)
    assert engine_run.run_engine(settings(tmp_path), LocalInbox([])) == EXIT_BAD_SETTINGS
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert re.search(remedy, line)


@pytest.mark.slow
def test_a_warm_up_that_loses_the_device_ends_the_engine_and_one_without_memory_fails_its_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warmup.Warmup, "_callables", raising(LOST[0]))
    with pytest.raises(type(LOST[0]), match="illegal"):
        serve(tmp_path, [], modes=["inference_mode"], batch_sizes=[1])
    freed: list[bool] = []
    monkeypatch.setattr(warmup.Warmup, "_callables", raising(torch.OutOfMemoryError("CUDA out of memory")))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(True))
    mode = serve(tmp_path, [], modes=["inference_mode"], batch_sizes=[1]).modes["inference_mode"]
    assert mode.state == "failed"
    assert "out of memory" in (mode.detail or "")
    assert freed == [True]


@pytest.mark.slow
def test_attention_that_is_wrong_in_every_mode_fails_every_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parity, "wrong_attention", lambda found: f"{len(found)} attentions are wrong")
    found = serve(tmp_path, []).modes.values()
    assert {(mode.state, mode.detail) for mode in found} == {("failed", "4 attentions are wrong")}
