"""Packages compiled ahead of time, and compiled callables: right in every size, and of one compilation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError
from torch.nn import functional as F

from models.config import Config
from models.served import Cache
from models.transformer import Transformer
from service.measure.symbols import Namer, executable_mappings
from service.modes import MODES
from service.records import Phase
from service.step import buffers as step_buffers
from service.step import callables
from service.step.buffers import Arguments, Buffers, allocate, make_symbolic
from service.step.callables import Exported, Step, build_step, load_package, package_identity
from service.step.compile_cache import REMOVED
from tests.support import small_models
from tests.support.fake_lowering import Lowering, bfloat16_model, fake_cuda

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


def test_a_package_is_found_again_and_not_for_other_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shared_cache: Path
) -> None:
    buffers = buffers_of(made())
    arguments = buffers.arguments("decode")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    step = build_step(MODES["aot-inductor"], made())
    first = logits(step, buffers, arguments, 0)
    # An engine that is ended must leave no unpacked package: torch removes its folder only at a regular exit.
    assert not list(tmp_path.iterdir())
    # Its functions have names all the same: without them its kernels are code of no class.
    removed = [mapping for mapping in executable_mappings() if mapping.path in REMOVED]
    namer = Namer()
    named = {namer.name(address)[0] for one in removed for address in range(one.begin, one.end, 64)}
    assert [name for name in named if name.startswith("cpp_fused")]
    assert all(file.suffix == ".pt2" for file in (shared_cache / "packages").iterdir())
    assert torch.equal(logits(step, buffers, arguments, 0), first)
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
        return package_identity(model, {}, on_cuda, [])

    model = made()
    first = identity("NVIDIA H100", (9, 0))
    assert identity(*other) != first
    assert identity("NVIDIA H100", (9, 0), number=1) != first
    assert identity("NVIDIA H100", (9, 0)) == first


def test_a_compilation_that_fails_leaves_no_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def half(_: object, __: object, file: Path) -> str:
        file.write_bytes(b"half")
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(callables, "cache_dir", lambda: str(tmp_path))
    monkeypatch.setattr(callables, "_compile", half)
    step = build_step(MODES["aot-inductor"], made())
    with pytest.raises(RuntimeError, match="disk is full"):
        step(*buffers_of(made()).arguments("decode"))
    assert not list((tmp_path / "packages").iterdir())


class Scaled(nn.Module):
    """Its class and its weights do not say what it computes."""

    def __init__(self, factor: float, function: Callable[[Tensor], Tensor], offset: Tensor) -> None:
        super().__init__()
        self.factor, self.function, self.offset = factor, function, offset

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x * self.factor) + self.offset


def test_a_module_has_a_package_of_what_it_computes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made_for: list[object] = []

    def compiled(program: object, _: object, file: Path) -> str:
        made_for.append(program)
        file.write_bytes(b"a package")
        return str(file)

    monkeypatch.setattr(callables, "cache_dir", lambda: str(tmp_path))
    monkeypatch.setattr(callables, "_compile", compiled)
    monkeypatch.setattr(torch._inductor, "aoti_load_package", lambda file: SimpleNamespace(loader=file))

    def package(
        factor: float = 2.0, function: Callable[[Tensor], Tensor] = F.relu, offset: float = 1.0
    ) -> Any:
        module = Scaled(factor, function, torch.full((4,), offset))
        exported = Exported(module, (torch.ones(4),), {})
        return load_package(module, {}, exported, by_graph=True)

    others = [package(factor=3.0), package(function=torch.sigmoid), package(offset=5.0), package()]
    assert len(set(others)) == len(made_for) == 4
    assert package() == others[-1]
    assert len(made_for) == 4


def _refuse(*_: object) -> str:
    raise AssertionError("compiled again")


# On CUDA one compilation serves every length: traced to where Inductor guards on them


CONTEXT = 512
"""Of a model whose attention reads 64 to 512 positions."""

CUDNN = torch.ops.aten._scaled_dot_product_cudnn_attention.default
EFFICIENT = torch.ops.aten._scaled_dot_product_efficient_attention.default
"""What CUDA can choose with our mask, which excludes flash attention; an H100 chooses cuDNN in bfloat16."""


def lower(
    monkeypatch: pytest.MonkeyPatch,
    operator: Callable[..., Any],
    phase: Phase,
    batch: int,
    context: int = CONTEXT,
) -> tuple[Lowering, int]:
    """Call a step of `compiled` in all its shapes; what was lowered, and how many shapes there are."""

    def attend(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor) -> Tensor:
        result: Tensor = operator(q, k, v, attn_mask, False)[0]
        return result

    monkeypatch.setattr(F, "scaled_dot_product_attention", attend)
    lowering = Lowering()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=lowering))
    with fake_cuda(monkeypatch):
        model = bfloat16_model(replace(small_models.CONFIG, context=context), batch)
        step = build_step(MODES["compiled"], model)
        shapes = list(allocate(model, [batch], prefill_chunk=64)[batch].shapes(phase))
        for arguments in shapes:
            step(*arguments)
    assert operator in lowering.operators
    return lowering, len(shapes)


@pytest.mark.parametrize("operator", [CUDNN, EFFICIENT])
@pytest.mark.parametrize(("phase", "shapes"), [("decode", 4), ("prefill", 12)])
def test_one_compilation_serves_every_length(
    operator: Callable[..., Any], phase: Phase, shapes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowering, called = lower(monkeypatch, operator, phase, 8)
    assert called == shapes
    (guards,) = lowering.guards
    assert any("Mod" in guard and ", 8)" in guard for guard in guards)


def test_batch_1_has_no_guard_on_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    lowering, _ = lower(monkeypatch, CUDNN, "decode", 1)
    (guards,) = lowering.guards
    assert not any("Mod" in guard for guard in guards)


def test_a_context_that_is_no_multiple_of_8_is_compiled_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    lowering, called = lower(monkeypatch, CUDNN, "decode", 8, context=500)
    assert called == 4
    assert len(lowering.guards) == 2


def test_an_enforced_mark_refuses_what_inductor_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    def enforced(tensor: Tensor, sizes: list[int], enforced: bool) -> None:
        assert not enforced
        make_symbolic(tensor, sizes, enforced=True)

    monkeypatch.setattr(step_buffers, "make_symbolic", enforced)
    with pytest.raises(ConstraintViolationError, match=r"64 <= .* <= 512 satisfy the generated guard .*% 8"):
        lower(monkeypatch, CUDNN, "decode", 8)
