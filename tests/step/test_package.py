"""Packages compiled ahead of time: made once, right in every size, and never taken for another step's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from models.config import Config
from models.transformer import Transformer
from service.protocol.modes import MODES
from service.step import package
from service.step.buffers import Arguments, Buffers, allocate
from service.step.callables import Step, build_step

pytestmark = pytest.mark.compiles

CONFIG = Config(layers=1, width=32, heads=4, kv_heads=2, head_width=8, hidden=64, vocabulary=64, context=128)


def made(seed: int = 3) -> Transformer:
    return Transformer(CONFIG, max_batch=2, seed=seed).eval()


def buffers_of(model: Transformer) -> Buffers:
    return allocate(model, [2], prefill_chunk=32)[2]


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests that need the same package, which takes its time to compile."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, shared_cache: Path) -> None:
    monkeypatch.setattr(package, "cache_dir", lambda: str(shared_cache))


def logits(step: Step, buffers: Buffers, arguments: Arguments, position: int) -> Tensor:
    buffers.positions.fill_(position)
    buffers.last.fill_(arguments[0].shape[1] - 1)
    arguments[0].copy_(torch.arange(arguments[0].numel()).view_as(arguments[0]) % CONFIG.vocabulary)
    return step(*arguments)[0].clone()


def test_one_package_serves_every_length_and_reach() -> None:
    made_before = counters["launchbound"][package.PACKAGES_MADE]
    model = made()
    buffers = buffers_of(model)
    eager, packaged = (build_step(MODES[name], model) for name in ("eager", "aot-inductor"))
    shapes = list(buffers.shapes("prefill"))
    assert len({(tokens.shape[1], cache[0][0].shape[1]) for tokens, _, _, cache in shapes}) > 2
    for arguments in shapes:
        position = arguments[3][0][0].shape[1] - arguments[0].shape[1]
        expected = logits(eager, buffers, arguments, position)
        torch.testing.assert_close(
            logits(packaged, buffers, arguments, position), expected, atol=1e-5, rtol=1e-5
        )
    assert counters["launchbound"][package.PACKAGES_MADE] == made_before + 1


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


def test_marks_of_symbolic_sizes_are_left_for_the_next_compilation() -> None:
    buffers = buffers_of(made())
    arguments = buffers.arguments("decode")
    marks = set(arguments[3][0][0]._dynamo_dynamic_range)  # type: ignore[attr-defined]
    build_step(MODES["aot-inductor"], made())(*arguments)
    assert arguments[3][0][0]._dynamo_dynamic_range == marks  # type: ignore[attr-defined]
    assert marks


def test_a_package_is_found_again_and_not_for_other_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = buffers_of(made())
    arguments = buffers.arguments("decode")
    first = logits(build_step(MODES["aot-inductor"], made()), buffers, arguments, 0)
    monkeypatch.setattr(package, "_compile", _refuse)
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


def test_a_compilation_that_fails_leaves_no_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def half(_: object, __: object, ___: object, file: Path) -> str:
        file.write_bytes(b"half")
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(package, "cache_dir", lambda: str(tmp_path))
    monkeypatch.setattr(package, "_compile", half)
    step = build_step(MODES["aot-inductor"], made())
    with pytest.raises(RuntimeError, match="disk is full"):
        step(*buffers_of(made()).arguments("decode"))
    assert not list((tmp_path / "packages").iterdir())


def _refuse(*_: object) -> str:
    raise AssertionError("compiled again")
