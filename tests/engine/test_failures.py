"""What an error of the device ends: a request, a mode, or the engine; and what it leaves allocated."""

from __future__ import annotations

import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from models.transformer import Transformer
from service.engine import loop as engine_run
from service.engine import warmup
from service.engine.generation import Generator
from service.engine.inbox import LocalInbox, local_job
from service.engine.loop import Engine
from service.front.supervisor import EXIT_BAD_SETTINGS, EXIT_DEVICE_LOST
from service.records import Job
from tests.engine.serving import PROMPT, serve, settings

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("restored_globals")]

LOST = [
    torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(...)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
]


@pytest.mark.parametrize("error", LOST, ids=str)
def test_a_job_that_loses_the_device_ends_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(Generator, "run", fail)
    inbox = LocalInbox([local_job("a", "inference_mode", [PROMPT], 2)])
    with pytest.raises(type(error), match=r"illegal|CUBLAS|CUDNN"):
        Engine(settings(tmp_path, modes=["inference_mode"], batch_sizes=[1]), inbox).run()
    assert inbox.outcomes == []


def test_a_job_without_memory_is_answered_its_tensors_freed_and_the_next_one_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[weakref.ref[torch.Tensor]] = []
    freed: list[bool] = []
    original = Generator.run

    def fail_once(self: Generator, job: Job, *arguments: object) -> None:
        if held or job.id != "a":  # warm-up has jobs of its own
            original(self, job, *arguments)  # type: ignore[arg-type]
            return
        tensor = torch.zeros(8)
        held.append(weakref.ref(tensor))
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    monkeypatch.setattr(Generator, "run", fail_once)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(held[0]() is None))
    jobs = [local_job(name, "inference_mode", [PROMPT], 2, ignore_eos=True) for name in ("a", "b")]
    inbox = serve(tmp_path, jobs, modes=["inference_mode"], batch_sizes=[1])
    assert [outcome.kind for outcome in inbox.outcomes] == ["oom", "ok"]
    problem = inbox.outcomes[0].problem
    assert problem is not None
    assert problem.type == "out_of_memory"
    assert freed == [True]


def test_the_process_of_a_lost_device_ends_with_an_exit_code_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Failing:
        parts = SimpleNamespace(warmup=SimpleNamespace(share=lambda _: None))

        def __init__(self, *_: object, **__: object) -> None: ...

        def run(self) -> None:
            raise error

    monkeypatch.setattr(engine_run, "Engine", Failing)
    monkeypatch.setattr(engine_run, "prepare_process", lambda *_: None)
    error: Exception = LOST[0]
    assert engine_run.run_engine(settings(tmp_path), LocalInbox([])) == EXIT_DEVICE_LOST
    assert "an illegal memory access" in capsys.readouterr().err
    error = RuntimeError("something else")
    with pytest.raises(RuntimeError, match="something else"):
        engine_run.run_engine(settings(tmp_path), LocalInbox([]))


def test_a_model_whose_eager_step_fails_is_refused_with_its_architecture_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> object:
        raise IndexError("index 64 is out of bounds for dimension 0 with size 64")

    monkeypatch.setattr(Transformer, "forward", fail)
    monkeypatch.setattr(engine_run, "prepare_process", lambda *_: None)
    assert engine_run.run_engine(settings(tmp_path), LocalInbox([])) == EXIT_BAD_SETTINGS
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "Transformer cannot be served: its eager step failed" in line
    assert "IndexError: index 64" in line
    assert "serve another architecture" in line


def test_a_model_that_does_not_fit_in_memory_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> object:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    monkeypatch.setattr(Transformer, "forward", fail)
    monkeypatch.setattr(engine_run, "prepare_process", lambda *_: None)
    assert engine_run.run_engine(settings(tmp_path), LocalInbox([])) == EXIT_BAD_SETTINGS
    assert "set LAUNCHBOUND_BATCH_SIZES or LAUNCHBOUND_CONTEXT to less" in capsys.readouterr().err


@pytest.mark.parametrize("error", LOST, ids=str)
def test_a_warm_up_that_loses_the_device_ends_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> object:
        raise error

    monkeypatch.setattr(warmup.Capture, "_callables", fail)
    with pytest.raises(type(error), match=r"illegal|CUBLAS|CUDNN"):
        serve(tmp_path, [], modes=["inference_mode"], batch_sizes=[1])


def test_a_warm_up_without_memory_fails_its_mode_and_frees_what_it_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[bool] = []

    def fail(*_: object) -> object:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(warmup.Capture, "_callables", fail)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(True))
    inbox = serve(tmp_path, [], modes=["inference_mode"], batch_sizes=[1])
    assert inbox.modes["inference_mode"].state == "failed"
    assert "out of memory" in (inbox.modes["inference_mode"].detail or "")
    assert freed == [True]


def test_attention_that_is_wrong_in_every_mode_fails_every_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warmup, "wrong_attention", lambda found: f"{len(found)} attentions are wrong")
    inbox = serve(tmp_path, [])
    assert {status.state for status in inbox.modes.values()} == {"failed"}
    assert {status.detail for status in inbox.modes.values()} == {"4 attentions are wrong"}
