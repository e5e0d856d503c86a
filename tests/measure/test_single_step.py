"""Counts of instructions: they grow with what is run and with nothing else."""

from __future__ import annotations

import gc
import platform
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from service.measure.single_step import InstructionCounter, Instructions, SingleStepError


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> InstructionCounter:
    return InstructionCounter(tmp_path_factory.mktemp("library"))


def test_a_tensor_twice_as_long_takes_twice_the_instructions_in_kernels_and_none_more_on_the_host(
    counter: InstructionCounter,
) -> None:
    def doubled(length: int) -> Instructions:
        values = torch.ones(length)
        return counter.count_settled(lambda: values.mul_(2.0))

    once, twice, four_times = (doubled(length) for length in (2**12, 2**13, 2**14))
    grown = four_times.of("kernel") - twice.of("kernel")
    assert grown == pytest.approx(2 * (twice.of("kernel") - once.of("kernel")), rel=0.02)
    assert grown > 2**13 / 16  # a vector of AVX-512 holds sixteen; longer tensors take a second thread
    assert four_times.of("host") == pytest.approx(twice.of("host"), rel=0.05)


@pytest.mark.parametrize("collecting", [True, False])
def test_an_error_in_what_is_counted_ends_the_counting_and_leaves_the_process_as_it_was(
    counter: InstructionCounter, collecting: bool
) -> None:
    handler = signal.getsignal(signal.SIGTRAP)
    try:
        if not collecting:
            gc.disable()
        with pytest.raises(ZeroDivisionError):
            counter.count(lambda: 1 / 0)
        assert gc.isenabled() == collecting
    finally:
        gc.enable()
    assert signal.getsignal(signal.SIGTRAP) == handler
    assert counter.count(lambda: None).of("host") < 500


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda patch: patch.setattr(InstructionCounter, "_counted", lambda *_: Counter()), "does not stop"),
        (lambda patch: patch.setattr(platform, "machine", lambda: "aarch64"), "x86_64 only"),
        (lambda patch: patch.setenv("CXX", "no-such-compiler"), r"install g\+\+, or set CXX"),
    ],
    ids=["the trap flag is ignored", "another processor", "no compiler"],
)
def test_where_instructions_cannot_be_counted_the_reason_is_given(
    spoil: Callable[[pytest.MonkeyPatch], None], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spoil(monkeypatch)
    with pytest.raises(SingleStepError, match=said):
        InstructionCounter(tmp_path)
