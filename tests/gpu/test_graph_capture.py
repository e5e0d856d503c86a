"""Hand-captured replay on a real device: one launch, the same numbers, nothing captured after warm-up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from models.config import CONFIGS
from models.transformer import Transformer
from service.modes import MODES
from service.step.buffers import Buffers, allocate
from service.step.callables import Step, build_step
from service.step.device import is_device_lost
from service.step.graphs import CaptureError, forbid_recompilation, record_cuda_graph
from service.step.loaded_model import PRECISIONS
from service.step.parity import check_attention, compare, forced_logits, wrong_attention
from service.step.profiling import profile_step
from tests.gpu import NEEDS_CUDA

pytestmark = NEEDS_CUDA

CONFIG = CONFIGS["tiny"]


def made(precision: str) -> tuple[Transformer, dict[int, Buffers]]:
    chosen = PRECISIONS[precision]
    model = Transformer(CONFIG, max_batch=4).eval().to("cuda", chosen.weights)
    model.rotary = model.rotary.to(chosen.cache)
    return model, allocate(model, [1, 4], 64, chosen.cache)


@pytest.fixture(scope="module")
def served() -> tuple[Transformer, dict[int, Buffers]]:
    return made("bfloat16")


@pytest.fixture
def default_stance() -> Iterator[None]:
    yield
    torch.compiler.set_stance("default")


@pytest.mark.parametrize("precision", PRECISIONS)
@torch.no_grad()
def test_a_replay_computes_exactly_what_inference_mode_does(precision: str) -> None:
    model, buffers = made(precision)
    for own in buffers.values():
        plain, step = (
            build_step(MODES[name], model, precision=PRECISIONS[precision])
            for name in ("inference_mode", "cuda-graph")
        )
        expected = forced_logits(plain, plain, own, CONFIG.vocabulary)
        for _ in range(2):
            found = forced_logits(step, step, own, CONFIG.vocabulary)
            assert compare(expected, found, CONFIG.layers).passed
            assert torch.equal(expected, found)


@torch.no_grad()
def test_it_is_one_graph_launch_per_step_of_as_many_kernels_as_inference_mode_launches(
    served: tuple[Transformer, dict[int, Buffers]],
) -> None:
    model, buffers = served
    found = {}
    for name in ("inference_mode", "cuda-graph"):
        step = build_step(MODES[name], model)
        for _ in range(4):
            buffers[4].prepare()
            step(*buffers[4].arguments("decode"))
        found[name] = profile_step(step, buffers[4])
    plain, replayed = found["inference_mode"], found["cuda-graph"]
    assert (plain.graph_launches, replayed.graph_launches) == (0, 1)
    assert replayed.launches == 1
    assert plain.kernels is not None
    assert plain.kernels == plain.launches == replayed.kernels


@pytest.mark.parametrize("mode", ["cuda-graph", "compiled-captured"])
@torch.no_grad()
def test_every_shape_has_a_graph_and_all_share_their_memory(
    served: tuple[Transformer, dict[int, Buffers]], mode: str
) -> None:
    model, buffers = served
    step: Step = build_step(MODES[mode], model)
    shapes = list(buffers[4].shapes("prefill"))
    buffers[4].prepare()
    results = [step(*arguments)[0].clone() for arguments in shapes]
    again = [step(*arguments)[0].clone() for arguments in reversed(shapes)]
    assert all(torch.equal(*pair) for pair in zip(results, reversed(again), strict=True))


@torch.no_grad()
def test_compiled_code_is_replayed_as_one_graph_and_computes_what_it_computes_without(
    served: tuple[Transformer, dict[int, Buffers]],
) -> None:
    model, buffers = served
    compiled, captured = (build_step(MODES[name], model) for name in ("compiled", "compiled-captured"))
    expected, found = (forced_logits(one, one, buffers[4], CONFIG.vocabulary) for one in (compiled, captured))
    assert torch.equal(expected, found)
    buffers[4].prepare()
    seen = profile_step(captured, buffers[4])
    assert (seen.launches, seen.graph_launches) == (1, 1)


@torch.no_grad()
def test_a_graph_outlives_other_graphs_of_its_stream_and_those_of_inductor(
    served: tuple[Transformer, dict[int, Buffers]],
) -> None:
    # All of them multiply with cuBLAS, which has one workspace per stream: freed with the first, it is lost.
    model, buffers = served
    buffers[4].prepare()
    arguments = buffers[4].arguments("decode")
    step, other, compiled = (
        build_step(MODES[name], model) for name in ("cuda-graph", "cuda-graph", "reduce-overhead")
    )
    expected = step(*arguments)[0].clone()
    other(*arguments)
    del other
    for _ in range(4):
        compiled(*arguments)
    torch.cuda.empty_cache()
    filled = [torch.full((2**22,), float("nan"), device="cuda") for _ in range(16)]
    for _ in range(8):
        assert torch.equal(step(*arguments)[0], expected)
    assert all(block.isnan().all() for block in filled)


@pytest.mark.usefixtures("default_stance")
@torch.no_grad()
def test_nothing_is_captured_after_warm_up(served: tuple[Transformer, dict[int, Buffers]]) -> None:
    model, buffers = served
    step = build_step(MODES["cuda-graph"], model)
    buffers[4].prepare()
    step(*buffers[4].arguments("decode"))
    forbid_recompilation()
    step(*buffers[4].arguments("decode"))
    with pytest.raises(CaptureError):
        step(*buffers[4].arguments("prefill"))


def test_what_cannot_be_captured_is_refused_and_the_device_still_works() -> None:
    value = torch.ones(1, device="cuda")

    def waits() -> tuple[torch.Tensor, torch.Tensor]:
        value.item()
        return value, value

    with pytest.raises(CaptureError, match="what remains: inference_mode") as refused:
        record_cuda_graph(waits)
    assert not is_device_lost(refused.value)
    replay, (doubled, _) = record_cuda_graph(lambda: (value * 2, value))
    replay()
    assert doubled.item() == 2


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@torch.no_grad()
def test_the_chosen_attention_equals_the_reference(precision: str) -> None:
    model, buffers = made(precision)
    eager = build_step(MODES["eager"], model, precision=PRECISIONS[precision])
    reference = {b: forced_logits(eager, eager, own, CONFIG.vocabulary) for b, own in buffers.items()}
    found = check_attention(eager, buffers, reference, CONFIG)
    assert all(one.backends for one in found)
    assert wrong_attention(found) is None
