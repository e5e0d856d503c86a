"""Packages compiled ahead of time: made once, right in every size, and never taken for another step's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode

from models.config import Config
from models.served import Cache
from models.transformer import Transformer
from service.modes import MODES
from service.step import callables
from service.step.buffers import Arguments, Buffers, allocate, make_symbolic
from service.step.callables import Step, build_step, package_identity

pytestmark = pytest.mark.compiles

CONFIG = Config(layers=1, width=32, heads=4, kv_heads=2, head_width=8, hidden=64, vocabulary=64, context=128)


def made(seed: int = 3) -> Transformer:
    return Transformer(CONFIG, max_batch=2, seed=seed).eval()


def buffers_of(model: Transformer) -> Buffers:
    return allocate(model, [2], prefill_chunk=32)[2]


def weakly_marked(model: Transformer) -> Buffers:
    """Buffers as on CUDA, where the marks of sizes are not enforced."""
    buffers = allocate(model, [2], prefill_chunk=32, symbolic=False)[2]
    for tokens in buffers.chunks.values():
        make_symbolic(tokens, list(buffers.chunks), enforced=False)
    for part in (part for cache in buffers.caches.values() for layer in cache for part in layer):
        make_symbolic(part, list(buffers.caches), enforced=False)
    return buffers


class Aligned(nn.Module):
    """A model with a guard as attention on CUDA has one: on the cache's length."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, positions: Tensor, last: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        logits, greedy = self.model(tokens, positions, last, cache)
        return (logits if cache[0][0].shape[1] % 8 == 0 else logits + 1), greedy


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests that need the same package, which takes its time to compile."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, shared_cache: Path) -> None:
    monkeypatch.setattr(callables, "cache_dir", lambda: str(shared_cache))


def logits(step: Step, buffers: Buffers, arguments: Arguments, position: int) -> Tensor:
    buffers.positions.fill_(position)
    buffers.last.fill_(arguments[0].shape[1] - 1)
    arguments[0].copy_(torch.arange(arguments[0].numel()).view_as(arguments[0]) % CONFIG.vocabulary)
    return step(*arguments)[0].clone()


@pytest.mark.parametrize("enforced", [True, pytest.param(False, marks=pytest.mark.long)])
def test_one_package_serves_every_length_and_reach(enforced: bool) -> None:
    made_before = counters["launchbound"][callables.PACKAGES_MADE]
    model = made()
    buffers = buffers_of(model) if enforced else weakly_marked(model)
    eager = build_step(MODES["eager"], model)
    packaged = build_step(MODES["aot-inductor"], model if enforced else Aligned(model))
    shapes = list(buffers.shapes("prefill"))
    assert len({(tokens.shape[1], cache[0][0].shape[1]) for tokens, _, _, cache in shapes}) > 2
    for arguments in shapes:
        position = arguments[3][0][0].shape[1] - arguments[0].shape[1]
        expected = logits(eager, buffers, arguments, position)
        torch.testing.assert_close(
            logits(packaged, buffers, arguments, position), expected, atol=1e-5, rtol=1e-5
        )
    assert counters["launchbound"][callables.PACKAGES_MADE] == made_before + 1


def test_decode_writes_the_cache_that_the_next_step_reads() -> None:
    model = made()
    buffers = buffers_of(model)
    found = {}
    for name in ("eager", "aot-inductor"):
        for key, value in buffers.cache:
            key.zero_(), value.zero_()
        step = build_step(MODES[name], model)
        for position in range(3):
            found[name] = logits(step, buffers, buffers.arguments("decode"), position)
    torch.testing.assert_close(found["aot-inductor"], found["eager"], atol=1e-5, rtol=1e-5)


def test_a_package_is_found_again_and_not_for_other_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = buffers_of(made())
    arguments = buffers.arguments("decode")
    first = logits(build_step(MODES["aot-inductor"], made()), buffers, arguments, 0)
    monkeypatch.setattr(callables, "_compile", _refuse)
    assert torch.equal(logits(build_step(MODES["aot-inductor"], made()), buffers, arguments, 0), first)
    with pytest.raises(AssertionError, match="compiled again"):
        build_step(MODES["aot-inductor"], made(seed=4))(*arguments)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        with pytest.raises(AssertionError, match="compiled again"):
            build_step(MODES["aot-inductor"], made())(*arguments)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    "other", [("NVIDIA H200", (9, 0)), ("NVIDIA H100", (10, 0))], ids=["name", "capability"]
)
def test_a_package_is_not_found_for_another_gpu(
    monkeypatch: pytest.MonkeyPatch, other: tuple[str, tuple[int, int]]
) -> None:
    def identity(name: str, capability: tuple[int, int], number: int = 0) -> str:
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
        with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cuda", number):
            row = torch.zeros(2, dtype=torch.int64)
            on_cuda = row.view(2, 1), row, row, ((torch.zeros(2, 64, 2, 8),) * 2,)
        return package_identity(model, {}, on_cuda)

    model = made()
    first = identity("NVIDIA H100", (9, 0))
    assert identity(*other) != first
    assert identity("NVIDIA H100", (9, 0), number=1) != first
    assert identity("NVIDIA H100", (9, 0)) == first


def test_a_compilation_that_fails_leaves_no_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def half(_: object, __: object, ___: object, file: Path) -> str:
        file.write_bytes(b"half")
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(callables, "cache_dir", lambda: str(tmp_path))
    monkeypatch.setattr(callables, "_compile", half)
    step = build_step(MODES["aot-inductor"], made())
    with pytest.raises(RuntimeError, match="disk is full"):
        step(*buffers_of(made()).arguments("decode"))
    assert not list((tmp_path / "packages").iterdir())


def _refuse(*_: object) -> str:
    raise AssertionError("compiled again")
