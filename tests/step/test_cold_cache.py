"""A hollow step reads as many bytes as the served model's weights, at the same modules, off its clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from models.config import CONFIGS
from models.transformer import Transformer
from service.protocol.modes import MODES
from service.step import calibration, cold_cache
from service.step.buffers import allocate
from service.step.calibration import FIRST_SAMPLES, Calibration, cold_seconds
from service.step.callables import build_step
from service.step.cold_cache import ColdCacheEmulation, weights_by_reader
from service.step.twin_step import TwinStep
from service.step.untimed import LEAD_STEPS_OF_FLOOR

CONFIG = replace(CONFIGS["tiny"], layers=2)


@pytest.fixture(scope="module")
def model() -> Transformer:
    return Transformer(CONFIG, 1).eval()


def hollow() -> Transformer:
    return Transformer(CONFIG.hollow(), 1).eval()


class Recording(ColdCacheEmulation):
    """Records what would be read instead of reading it."""

    def __init__(self, model: Transformer) -> None:
        super().__init__(model)
        self.read: list[tuple[int, int]] = []

    def _read(self, begin: int, end: int) -> None:
        self.read.append((begin, end))


def decode(model: torch.nn.Module) -> tuple[Tensor, Tensor]:
    assert isinstance(model, Transformer)
    buffers = allocate(model, [1], 1)[1]
    with torch.no_grad():
        logits, greedy = model(*buffers.arguments("decode"))
    return logits, greedy


def test_every_weight_of_a_step_has_a_reader_and_an_embedding_has_none(model: Transformer) -> None:
    shares = weights_by_reader(model)
    products = [p for name, p in model.named_parameters() if p.dim() > 1 and "embedding" not in name]
    tied = [model.head.weight]
    assert sum(shares.values()) == sum(p.numel() * p.element_size() for p in [*products, *tied])
    assert "embedding" not in shares
    assert list(shares)[-1] == "head"


def test_a_step_reads_what_its_model_has_less_than_the_served_one(model: Transformer) -> None:
    emulation = Recording(model)
    twin = hollow()
    decode(emulation.patch_modules(twin))
    own = weights_by_reader(twin)
    shares = weights_by_reader(model)
    assert [end - begin for begin, end in emulation.read] == [shares[name] - own[name] for name in shares]


def test_no_byte_is_read_twice_in_a_step(model: Transformer) -> None:
    emulation = Recording(model)
    decode(emulation.patch_modules(hollow()))
    ends = [0, *(end for _, end in emulation.read)]
    assert all(begin >= end for (begin, _), end in zip(emulation.read, ends, strict=False))


def test_the_served_model_itself_reads_nothing_extra(model: Transformer) -> None:
    emulation = Recording(model)
    decode(emulation.patch_modules(Transformer(CONFIG, 1).eval()))
    assert emulation.read == []


def test_a_larger_model_reads_no_more_than_the_bound(
    model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.step.cold_cache.LARGEST_BYTES", 100_000)
    emulation = Recording(model)
    decode(emulation.patch_modules(hollow()))
    assert 90_000 < sum(end - begin for begin, end in emulation.read) <= 100_000


def test_reading_changes_no_result(model: Transformer) -> None:
    plain = hollow()
    patched = ColdCacheEmulation(model).patch_modules(hollow())
    assert torch.equal(decode(plain)[0], decode(patched)[0])


class Clock:
    """Stands still but for what is added to it."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


class Slow(ColdCacheEmulation):
    """Each read takes two milliseconds of `clock`."""

    def __init__(self, model: Transformer, clock: Clock) -> None:
        super().__init__(model)
        self.clock = clock

    def _read(self, begin: int, end: int) -> None:
        self.clock.now_ns += 2_000_000


@pytest.mark.parametrize("evict_before", [False, True])
def test_reading_is_off_the_clock_of_a_sample(
    model: Transformer, monkeypatch: pytest.MonkeyPatch, evict_before: bool
) -> None:
    clock = Clock()
    monkeypatch.setattr(calibration, "perf_counter_ns", clock)
    monkeypatch.setattr(cold_cache, "perf_counter_ns", clock)
    slow = Slow(model, clock)
    twin = hollow() if evict_before else slow.patch_modules(hollow())
    step = build_step(MODES["no_grad"], twin)

    def timed(*arguments: Any) -> tuple[Tensor, Tensor]:
        clock.now_ns += 700
        return step(*arguments)

    arguments = allocate(hollow(), [1], 1)[1].arguments("decode")
    samples = cold_seconds(timed, arguments, slow, evict_before, count=3)
    assert samples == [700e-9] * 3
    reads_per_step = 1 if evict_before else len(weights_by_reader(model))
    assert clock.now_ns == (LEAD_STEPS_OF_FLOOR + 3) * (700 + reads_per_step * 2_000_000)


def test_only_what_is_issued_operator_by_operator_reads_inside_the_step(model: Transformer) -> None:
    twin = hollow()
    twins = Calibration(model, twin)
    assert twins.twin_of(MODES["compiled"]) is twin
    assert twins.twin_of(MODES["eager"]) is not twin
    assert twins.twin_of(MODES["eager"]) is twins.twin_of(MODES["inference_mode"])


def test_twins_take_turns_and_only_wide_ones_get_further_samples(
    model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    twins = Calibration(model, hollow())
    taken: list[str] = []
    arguments = allocate(hollow(), [1], 1)[1].arguments("decode")
    for mode in ("eager", "no_grad"):
        twins.add(MODES[mode], "decode", 1, build_step(MODES[mode], hollow()), arguments)

    def sample(self: Calibration, twin: TwinStep, *_: object) -> None:
        taken.append(twin.mode)
        # Steady in eager; in no_grad every other sample reads twice as much.
        twin.samples_seconds.append(1.0 + (twin.mode == "no_grad") * (len(taken) // 2 % 2))

    monkeypatch.setattr(Calibration, "_sample", sample)
    twins.resample()
    assert taken[: 2 * FIRST_SAMPLES] == ["eager", "no_grad"] * FIRST_SAMPLES
    assert taken[2 * FIRST_SAMPLES :] == ["no_grad"] * FIRST_SAMPLES
