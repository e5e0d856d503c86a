"""A hollow step reads what the served model's weights would, where they would, and off its clock."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter_ns

import pytest
import torch
from torch import Tensor

from models.config import CONFIGS
from models.transformer import Transformer
from service.protocol.modes import MODES
from service.step.calibration import FIRST_SAMPLES, Calibration, TwinStep, cold_seconds
from service.step.callables import allocate, build_step
from service.step.cold_cache import ColdCacheEmulation, weights_by_reader

CONFIG = replace(CONFIGS["tiny"], layers=2)


@pytest.fixture(scope="module")
def model() -> Transformer:
    return Transformer(CONFIG, 1).eval()


def hollow() -> Transformer:
    return Transformer(CONFIG.hollow(), 1).eval()


class Noted(ColdCacheEmulation):
    """Notes what is read instead of reading it."""

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
    cold_cache, twin = Noted(model), hollow()
    decode(cold_cache.patch_modules(twin))
    own, shares = weights_by_reader(twin), weights_by_reader(model)
    assert [end - begin for begin, end in cold_cache.read] == [shares[name] - own[name] for name in shares]


def test_what_is_read_is_never_read_twice_in_a_step(model: Transformer) -> None:
    cold_cache = Noted(model)
    decode(cold_cache.patch_modules(hollow()))
    ends = [0, *(end for _, end in cold_cache.read)]
    assert all(begin >= end for (begin, _), end in zip(cold_cache.read, ends, strict=False))


def test_the_served_model_itself_reads_nothing_more(model: Transformer) -> None:
    cold_cache = Noted(model)
    decode(cold_cache.patch_modules(Transformer(CONFIG, 1).eval()))
    assert cold_cache.read == []


def test_a_larger_model_reads_no_more_than_the_bound(
    model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.step.cold_cache.LARGEST_BYTES", 100_000)
    cold_cache = Noted(model)
    decode(cold_cache.patch_modules(hollow()))
    assert 90_000 < sum(end - begin for begin, end in cold_cache.read) <= 100_000


def test_reading_changes_no_result(model: Transformer) -> None:
    plain, cooled = hollow(), ColdCacheEmulation(model).patch_modules(hollow())
    assert torch.equal(decode(plain)[0], decode(cooled)[0])


class Slow(ColdCacheEmulation):
    """Each read takes two milliseconds by the clock that steps are measured with."""

    def _read(self, begin: int, end: int) -> None:
        until = perf_counter_ns() + 2_000_000
        while perf_counter_ns() < until:
            continue


def test_reading_is_off_the_clock_of_a_sample(model: Transformer) -> None:
    cold_cache = Slow(model)
    twin = cold_cache.patch_modules(hollow())
    buffers = allocate(hollow(), [1], 1)[1]
    samples = cold_seconds(
        build_step(MODES["no_grad"], twin), buffers, cold_cache, evict_before=False, count=3
    )
    reads_per_step = len(weights_by_reader(model))
    assert cold_cache.reading_ns / 1e9 >= 3 * reads_per_step * 0.002
    assert min(samples) < reads_per_step * 0.002


def test_only_what_is_issued_operator_by_operator_is_cooled_inside(model: Transformer) -> None:
    twin = hollow()
    calibration = Calibration(model, twin)
    assert calibration.twin_of(MODES["compiled"]) is twin
    assert calibration.twin_of(MODES["eager"]) is not twin
    assert calibration.twin_of(MODES["eager"]) is calibration.twin_of(MODES["inference_mode"])


def test_twins_take_turns_and_only_wide_ones_are_sampled_on(
    model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibration, taken = Calibration(model, hollow()), list[str]()
    buffers = allocate(hollow(), [1], 1)[1]
    for mode in ("eager", "no_grad"):
        calibration.add(MODES[mode], build_step(MODES[mode], hollow()), buffers)

    def sample(self: Calibration, twin: TwinStep, *_: object) -> None:
        taken.append(twin.mode)
        # Steady in eager; in no_grad every other sample reads twice as much.
        twin.samples_seconds.append(1.0 + (twin.mode == "no_grad") * (len(taken) // 2 % 2))

    monkeypatch.setattr(Calibration, "_sample", sample)
    calibration.begin_anew()
    assert taken[: 2 * FIRST_SAMPLES] == ["eager", "no_grad"] * FIRST_SAMPLES
    assert taken[2 * FIRST_SAMPLES :] == ["no_grad"] * FIRST_SAMPLES
