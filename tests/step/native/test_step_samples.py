"""Which samples fell into steps, and on which side each address is."""

from __future__ import annotations

import ctypes
from contextlib import closing, suppress
from time import perf_counter_ns, thread_time

import numpy as np
import pytest

from service.step.native import step_samples
from service.step.native.elf_symbols import UNKNOWN, Namer
from service.step.native.perf_events import IN_SYSTEM, PerfError, Samples
from service.step.native.stacks import Sample, StackSampler
from service.step.native.step_samples import AddressSides, StepSamples, within

SYSTEM, KERNEL, HOST, UNNAMED = range(4)


def at(*times_ns: int) -> Samples:
    found = Samples()
    found.times_ns = np.array(times_ns, np.int64)
    found.addresses = np.zeros(len(times_ns), np.uint64)
    return found


def sides(*values: int) -> np.ndarray:
    return np.array(values, np.int8)


def test_only_what_fell_into_a_step_counts() -> None:
    samples = at(5, 10, 19, 20, 25, 30, 34, 35, 99)
    found = within([10, 30], [10, 5], samples, sides(*[HOST] * 9))
    assert found == StepSamples(kernel=0, host=4, unnamed=0)  # 10, 19 and 30, 34


def test_samples_are_counted_by_side_and_those_of_the_system_on_neither() -> None:
    samples = at(1, 2, 3, 4, 5, 6)
    found = within([0], [10], samples, sides(KERNEL, HOST, UNNAMED, SYSTEM, KERNEL, KERNEL))
    assert found == StepSamples(kernel=3, host=2, unnamed=1)


@pytest.mark.parametrize("samples", [at(), at(1, 2)])
def test_without_steps_there_is_nothing_to_count(samples: Samples) -> None:
    assert within([], [], samples, sides(*[HOST] * len(samples.times_ns))) == StepSamples(0, 0, 0)


def classes(monkeypatch: pytest.MonkeyPatch, found: dict[int, Sample]) -> list[int]:
    """Has addresses classed as `found` says; returns those that were asked for, as they are."""
    asked: list[int] = []

    def classed(namer: Namer, address: int) -> Sample:
        asked.append(address)
        return found[address]

    monkeypatch.setattr(step_samples, "classed", classed)
    monkeypatch.setattr(Namer, "knows", lambda self, address: True)
    return asked


def test_an_address_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = classes(
        monkeypatch, {7: Sample("kernel", "sgemm", "libmkl.so"), 8: Sample("host", "f", "python")}
    )
    known = AddressSides()
    assert known.of([7, 8, 7]).tolist() == [KERNEL, HOST, KERNEL]
    assert known.of([8, 7]).tolist() == [HOST, KERNEL]
    assert asked == [7, 8]


def test_a_host_function_without_a_name_is_told_apart_but_in_the_c_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    classes(
        monkeypatch,
        {7: Sample("host", UNKNOWN, "/usr/lib/libfoo.so"), 8: Sample("host", UNKNOWN, "/lib/libc.so.6")},
    )
    assert AddressSides().of([7, 8]).tolist() == [UNNAMED, HOST]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_samples, "MOST_ADDRESSES", 2)
    asked = classes(monkeypatch, {address: Sample("host", "f", "python") for address in range(4)})
    known = AddressSides()
    known.of([0, 1])
    assert known.of([2, 0, 3]).tolist() == [HOST] * 3
    assert asked == [0, 1, 2, 0, 3]


def test_a_library_that_was_loaded_later_is_found() -> None:
    known = AddressSides()
    known._namer._begins.clear()  # as if nothing had been mapped when it was made
    known._namer._mappings.clear()
    address = ctypes.cast(ctypes.CDLL(None).malloc, ctypes.c_void_p).value or 0
    assert known.of([address, IN_SYSTEM]).tolist() == [HOST, SYSTEM]


def test_samples_carry_the_clock_of_the_steps() -> None:
    with suppress(PerfError):  # where the system forbids it; test_stacks.py has what is said then
        sampled_by_the_clock(StackSampler())


def sampled_by_the_clock(sampler: StackSampler) -> None:
    found = Samples()
    with closing(sampler):
        began = perf_counter_ns()
        sampler.addresses.start()
        until = thread_time() + 0.05
        while thread_time() < until:
            pass
        sampler.addresses.stop(found)
        ended = perf_counter_ns()
    assert len(found.times_ns) > 10
    assert all(began <= instant <= ended for instant in found.times_ns.tolist())
    counted = within([began], [ended - began], found, AddressSides().of(found.addresses.tolist()))
    assert counted.host > counted.kernel
