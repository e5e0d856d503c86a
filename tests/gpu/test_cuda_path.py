"""The CUDA path on a real device: graphs, waits, outputs that survive the next replay."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import torch
from torch._dynamo.utils import counters

from models.config import CONFIGS
from models.transformer import Transformer
from service.engine.inbox import local_job
from service.modes import MODES
from service.records import EngineSettings, Phase
from service.step.buffers import Buffers, allocate
from service.step.callables import build_step
from service.step.device import _memory_by_pid, _nvml_handle, sharing_note
from service.step.loaded_model import load_model
from service.step.meters import CudaMeter, Readings
from service.step.sampling import Sampler
from tests.gpu import NEEDS_CUDA

pytestmark = NEEDS_CUDA


@pytest.fixture(scope="module")
def model() -> Transformer:
    return Transformer(CONFIGS["tiny"], max_batch=4).eval().to("cuda", torch.bfloat16)


@pytest.fixture(scope="module")
def buffers(model: Transformer) -> Buffers:
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", "/dev/shm/launchbound-tests")
    return allocate(model, [4], prefill_chunk=64)[4]


@pytest.mark.parametrize("phase", get_args(Phase))
@pytest.mark.parametrize("mode", ["compiled", "reduce-overhead"])
def test_one_callable_serves_every_shape_of_a_phase(
    model: Transformer, buffers: Buffers, mode: str, phase: Phase
) -> None:
    step = build_step(MODES[mode], model)
    graphs = counters["stats"]["unique_graphs"]
    for arguments in buffers.shapes(phase):
        step(*arguments)
    assert counters["stats"]["unique_graphs"] == graphs + 1


def test_a_copied_result_survives_the_next_replay(model: Transformer, buffers: Buffers) -> None:
    step = build_step(MODES["reduce-overhead"], model)
    with torch.no_grad():
        for _ in range(4):
            buffers.prepare()
            step(*buffers.arguments("decode"))
        buffers.token.fill_(5)
        first = step(*buffers.arguments("decode"))[0].clone()
        kept = first.clone()
        buffers.token.fill_(9)
        second = step(*buffers.arguments("decode"))[0].clone()
    assert torch.equal(first, kept)
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    "mode", ["eager", "inference_mode", "reduce-overhead", "cuda-graph", "compiled-captured"]
)
def test_a_step_waits_for_the_device_only_in_fetch(model: Transformer, buffers: Buffers, mode: str) -> None:
    step, meter, readings = build_step(MODES[mode], model), CudaMeter(4), Readings()
    with torch.no_grad():
        for _ in range(4):
            buffers.prepare()
            meter.fetch(meter.copy(meter.run(step, buffers.arguments("decode"), readings)[1]), readings)
        torch.cuda.set_sync_debug_mode("error")
        try:
            _, greedy = meter.run(step, buffers.arguments("decode"), readings)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        tokens = meter.fetch(meter.copy(greedy), readings)
    assert len(tokens) == 4
    assert len(readings.call) == len(readings.span) == len(readings.wait) == 5
    assert all(span > 0 for span in readings.span)


@pytest.mark.parametrize("limits", [{}, {"top_k": 7}, {"top_p": 0.8}, {"top_k": 40, "top_p": 0.9}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sampling_does_not_wait_and_a_seed_repeats_its_tokens(
    dtype: torch.dtype, limits: dict[str, Any]
) -> None:
    logits = torch.randn(4, 4096, device="cuda").to(dtype)
    logits[:, ::2] = -torch.inf
    greedy, drawn = logits.argmax(dim=-1), []
    job = local_job("a", "eager", ["x"] * 3, 9, temperature=0.8, seed=1, **limits)
    for _ in range(3):  # the first loads kernels
        torch.cuda.set_sync_debug_mode("error" if drawn else "default")
        try:
            drawn.append(Sampler(job, torch.device("cuda")).choose(logits, greedy, Readings()))
        finally:
            torch.cuda.set_sync_debug_mode("default")
    first, *later = (tokens.tolist() for tokens in drawn)
    assert later == [first, first]
    assert all(token % 2 for token in first)
    assert first[3] == greedy[3]


def test_a_gpu_by_its_number_is_the_current_one_and_one_too_many_is_refused(tmp_path: Path) -> None:
    count, before, threads = torch.cuda.device_count(), torch.cuda.current_device(), torch.get_num_threads()
    settings = EngineSettings(
        address="", device=f"cuda:{count - 1}", modes=["eager"], batch_sizes=[1], cache_folder=str(tmp_path)
    )
    try:
        loaded = load_model(settings)
        assert torch.cuda.current_device() == count - 1
        assert next(loaded.model.parameters()).device == loaded.device == torch.device(settings.device)
        with pytest.raises(ValueError, match=f"device 'cuda:{count}': torch sees {count} CUDA device"):
            load_model(msgspec.structs.replace(settings, device=f"cuda:{count}"))
    finally:
        torch.cuda.set_device(before)
        torch.set_num_threads(threads)


def test_another_process_on_the_gpu_is_named_and_one_of_the_engine_is_not() -> None:
    """Where the driver lists processes, which it does not in every container: there nothing is said."""
    uses = "import torch; held = torch.ones(1, device='cuda'); print(float(held), flush=True); input()"
    device, own, nvml = torch.device("cuda"), os.getpid(), pytest.importorskip("pynvml")
    assert nvml.nvmlDeviceGetName(_nvml_handle(nvml, device)) == torch.cuda.get_device_name(device)
    held = torch.ones(1, device=device)
    with subprocess.Popen(
        [sys.executable, "-c", uses], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"1.0\n"
        listed = own in _memory_by_pid(device)
        seen_by_child, seen_by_this = sharing_note(device, child.pid), sharing_note(device, own)
        child.kill()
    del held
    assert (f"pid {own} (" in (seen_by_child or "")) == listed
    assert f"pid {child.pid} (" not in (seen_by_this or "")
