"""The parts of a request's time add up to its total, whatever the device can measure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.front.request_timing import add_up
from service.records import Job, Outcome, Output, PhaseTimings, Timings

SECONDS = st.floats(0, 10)
JOB = Job(id="a", mode="eager", prompts=["x"], max_new_tokens=4, sent_ns=1_000, deadline_ns=10**12)


def phase(
    dispatch: float | None, kernel: float | None, sync_wait: float | None, steps: int = 1
) -> PhaseTimings:
    return PhaseTimings(
        steps=steps,
        wall_seconds=0.0,
        dispatch_seconds=dispatch,
        device_span_seconds=None,
        kernel_seconds=kernel,
        sync_wait_seconds=sync_wait,
    )


def outcome(prefill: PhaseTimings, decode: PhaseTimings, queue: float = 0.0, tokens: int = 4) -> Outcome:
    timings = Timings(
        queue_seconds=queue,
        prefill=prefill,
        decode=decode,
        tokenise_seconds=0.0,
        involuntary_switches=0,
        dispatch_source=None,
        kernel_source=None,
        taken_ns=2_000,
        first_token_ns=3_000,
        done_ns=4_000,
    )
    output = Output(text="", token_ids=list(range(tokens)), finish_reason="length")
    return Outcome(
        id="a",
        mode="eager",
        effective="eager",
        reason=None,
        kind="ok",
        batch_size=1,
        batch_bucket=1,
        outputs=[output],
        timings=timings,
    )


@given(queue=SECONDS, values=st.tuples(SECONDS, SECONDS, SECONDS, SECONDS), total_ns=st.integers(0, 10**11))
def test_on_a_cpu_kernel_closes_the_sum(
    queue: float, values: tuple[float, float, float, float], total_ns: int
) -> None:
    done = outcome(phase(values[0], values[1], None), phase(values[2], values[3], None), queue)
    parts = add_up(JOB, done, 0, 5_000, total_ns).parts
    assert parts.dispatch_seconds is not None
    assert parts.kernel_seconds is not None
    total = parts.queue_seconds + parts.dispatch_seconds + parts.kernel_seconds + parts.other_seconds
    assert total == pytest.approx(parts.total_seconds, abs=1e-9)


@given(kernel=st.none() | SECONDS, waits=st.tuples(SECONDS, SECONDS))
def test_on_cuda_kernels_run_beside_the_sum(kernel: float | None, waits: tuple[float, float]) -> None:
    done = outcome(phase(0.5, kernel, waits[0]), phase(0.5, kernel, waits[1]))
    parts = add_up(JOB, done, 0, 5_000, 10**10).parts
    assert parts.sync_wait_seconds is not None
    total = parts.queue_seconds + 1.0 + parts.sync_wait_seconds + parts.other_seconds
    assert total == pytest.approx(parts.total_seconds, abs=1e-9)


def test_what_nothing_measured_is_none_and_not_zero() -> None:
    unmeasured = outcome(phase(None, None, None), phase(None, None, None))
    parts = add_up(JOB, unmeasured, 0, 5_000, 10_000).parts
    assert parts.dispatch_seconds is parts.kernel_seconds is parts.sync_wait_seconds is None
    assert parts.other_seconds == parts.total_seconds


def test_border_seconds_are_the_way_there_less_the_queue_and_the_way_back() -> None:
    timing = add_up(JOB, outcome(phase(0, 0, None), phase(0, 0, None), queue=400e-9), 0, 4_700, 10_000)
    assert timing.parts.border_seconds == pytest.approx(1_300e-9)


def test_front_seconds_are_the_front_s_own_work_before_sending_and_after_receiving() -> None:
    done = outcome(phase(0, 0, None), phase(0, 0, None))
    assert add_up(JOB, done, 100, 4_700, 10_000).parts.front_seconds == pytest.approx(6_200e-9)


def test_one_token_has_no_time_per_further_token() -> None:
    one = outcome(phase(0, 0, None), phase(None, None, None, steps=0), tokens=1)
    assert add_up(JOB, one, 0, 5_000, 10_000).time_per_output_token_seconds is None


def test_an_outcome_that_never_ran_has_no_timing() -> None:
    never = Outcome(
        id="a", mode="eager", effective="eager", reason=None, kind="timeout", batch_size=1, batch_bucket=0
    )
    with pytest.raises(ValueError, match="without timings"):
        add_up(JOB, never, 0, 1, 2)
