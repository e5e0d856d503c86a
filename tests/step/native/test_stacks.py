"""Sampling this thread, and what the samples of steps in a row amount to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from time import thread_time

import pytest

from service.protocol.messages import Phase
from service.step.native import perf_events, stacks
from service.step.native.elf_symbols import UNKNOWN, Namer
from service.step.native.perf_events import IN_SYSTEM, AddressSampler, PerfError
from service.step.native.stacks import Recording, Sample, sample_steps
from service.step.untimed import LEAD_STEPS, LEAD_STEPS_OF_PREFILL, TIMED_STEPS

KERNEL = Sample("kernel", "mkl_blas_sgemm", "libtorch_cpu.so")
HOST = Sample("host", "_PyEval_EvalFrameDefault", "libpython3.so")
SYSTEM = Sample("system", "[kernel]", "[kernel]")


def busy(cpu_seconds: float = 0.1) -> None:
    until = thread_time() + cpu_seconds
    while thread_time() < until:
        pass


def addresses_of(run: Callable[[AddressSampler], None]) -> list[int] | None:
    """The samples of `run`; None where the system forbids sampling and the error says what to set."""
    try:
        with closing(AddressSampler()) as sampler, sampler.sampling() as addresses:
            run(sampler)
    except PerfError as error:
        told = str(error)
    else:
        return [int(address) for address in addresses.addresses]
    assert "perf_event_paranoid" in told or "perf_event_mlock_kb" in told
    return None


def test_a_busy_loop_is_sampled_in_this_process_or_the_error_names_the_remedy() -> None:
    addresses = addresses_of(lambda sampler: busy())
    if addresses is not None:
        assert len(addresses) > 10
        namer = Namer()
        assert all(namer.name(address)[1] != UNKNOWN for address in addresses if address != IN_SYSTEM)


def test_while_paused_no_sample_is_taken() -> None:
    def run(sampler: AddressSampler) -> None:
        with sampler.paused():
            busy()

    addresses = addresses_of(run)
    assert addresses is None or len(addresses) < 50  # of 500; a few belong to what is around the pause


def test_a_system_that_forbids_sampling_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(samples_per_second: int, flags: int) -> int:
        raise PermissionError

    monkeypatch.setattr(perf_events, "_open", refused)
    with pytest.raises(PerfError, match=r"kernel\.perf_event_paranoid.*CAP_PERFMON"):
        AddressSampler()


@pytest.mark.parametrize(
    ("samples", "share"),
    [([KERNEL, HOST, HOST, HOST], 0.25), ([KERNEL, KERNEL, SYSTEM], 1.0), ([SYSTEM], None), ([], None)],
)
def test_the_share_of_kernels_is_that_of_samples_outside_of_the_system(
    samples: list[Sample], share: float | None
) -> None:
    found = Recording()
    found.samples = samples
    assert found.kernel_share == share


class MadeUpSampler:
    """In place of a `StackSampler`: gives `samples`, or has lost some."""

    def __init__(self, samples: list[Sample] | None) -> None:
        self._samples = samples

    @contextmanager
    def recording(self) -> Iterator[Recording]:
        found = Recording()
        yield found
        if self._samples is None:
            raise PerfError("samples were lost")
        found.samples = self._samples


def test_a_step_is_divided_by_the_share_of_its_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = iter([[1.0], [3e-3, 4e-3, 9e-3], [5e-3, 6e-3]])
    monkeypatch.setattr(stacks, "_seconds_of", lambda *_: next(passes))
    found = sample_steps(MadeUpSampler([KERNEL, HOST, HOST, HOST]), int, "decode", 0.1, 0.1)  # type: ignore[arg-type]
    assert found is not None
    assert (found.kernel_seconds, found.dispatch_seconds) == (1e-3, 3e-3)
    assert found.sampled_seconds == [5e-3, 6e-3]


def test_nameless_host_functions_but_the_c_librarys_may_be_kernels() -> None:
    nameless = Sample("host", UNKNOWN, "/lib/libtorch_cpu.so")
    of_c = Sample("host", UNKNOWN, "/lib/libc.so.6")
    found = sample_steps(
        MadeUpSampler([KERNEL, HOST, nameless, of_c, SYSTEM]),  # type: ignore[arg-type]
        int,
        "decode",
        0.0,
        0.0,
    )
    assert found is not None
    assert (found.samples, found.unnamed) == (4, 1)
    assert (found.kernel_share, found.most_kernel_share) == (0.25, 0.5)


@pytest.mark.parametrize("samples", [None, [], [SYSTEM]])
def test_without_samples_or_with_lost_ones_nothing_is_known(samples: list[Sample] | None) -> None:
    assert sample_steps(MadeUpSampler(samples), int, "prefill", 0.0, 0.0) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("phase", "untimed", "timed"),
    [("decode", LEAD_STEPS, TIMED_STEPS), ("prefill", LEAD_STEPS_OF_PREFILL, 1)],
)
def test_slow_steps_settle_in_as_many_steps_as_fast_ones(
    monkeypatch: pytest.MonkeyPatch, phase: Phase, untimed: int, timed: int
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(stacks, "LEAD_SECONDS", 1e-9)
    sample_steps(MadeUpSampler([KERNEL]), lambda: calls.append(1), phase, 1e-9, 1e-9)  # type: ignore[arg-type]
    assert len(calls) == untimed + timed + 1
