"""The parts of a request's time add up to its total, also where it ran merged with others."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from service.front.engine_client import PendingRequest
from service.front.metrics.recorder import Metrics
from service.front.request_timing import add_up
from service.front.routes.answers import server_timing
from service.records import Job, SharedWork, StepGroup
from tests.support.outcomes import ENGINE, JOB, outcome, phase
from tests.support.serving import Front


def test_what_nothing_measured_is_none_and_not_zero() -> None:
    parts = add_up(JOB, outcome(phase(None, None), phase(None, None)), 0, 5_000, 10_000).parts
    assert parts.dispatch_seconds is parts.kernel_seconds is parts.sync_wait_seconds is None
    assert parts.other_seconds == parts.total_seconds


def test_border_seconds_are_the_ways_to_and_from_the_engine_and_front_seconds_the_fronts_own_work() -> None:
    done = outcome(phase(0, 0), phase(0, 0), queue_seconds=400e-9)
    parts = add_up(JOB, done, 100, 4_700, 10_000).parts
    assert parts.border_seconds == pytest.approx(1_300e-9)
    assert parts.front_seconds == pytest.approx(6_200e-9)


# ---------------------------------------------------------------- merged requests

ALONE = SharedWork(stall_seconds=0.0, rows=1.0, alone=True, counted=[], counted_switches=0)
PREFILL, DECODE = phase(0.004, 0.006), phase(0.02, 0.03, steps=5, wall_seconds=0.05)


def test_the_stall_is_a_part_of_the_total_and_dispatch_the_whole_steps() -> None:
    work = msgspec.structs.replace(ALONE, stall_seconds=0.02, rows=2.5, alone=False)
    parts = add_up(
        JOB, outcome(PREFILL, DECODE, queue_seconds=0.002, shared=work), 0, 101_000_000, 110_000_000
    ).parts
    assert (parts.stall_seconds, parts.effective_batch, parts.sources["steps"]) == (0.02, 2.5, "shared")
    assert parts.dispatch_seconds == pytest.approx(0.024)
    known = parts.queue_seconds, parts.dispatch_seconds, parts.kernel_seconds, 0.02, parts.other_seconds
    assert sum(known) == pytest.approx(parts.total_seconds, abs=1e-9)
    assert "stall;dur=20.0000" in server_timing(parts)


def test_a_request_that_is_not_merged_has_no_stall_and_its_own_steps() -> None:
    parts = add_up(JOB, outcome(PREFILL, DECODE), 0, 101_000_000, 110_000_000).parts
    assert (parts.stall_seconds, parts.effective_batch, parts.sources["steps"]) == (None, 1.0, "own")
    assert "stall" not in server_timing(parts)


def series(batching: str, *works: SharedWork | None) -> dict[str, float]:
    """What requests of these kinds come to in /metrics."""
    metrics = Metrics(CollectorRegistry(), ["eager"], [1, 4], {"version": "", "commit": ""})
    metrics.engine(msgspec.structs.replace(ENGINE, batching=batching))
    for work in works:
        metrics.observe(add_up(JOB, outcome(PREFILL, DECODE, shared=work), 0, 101_000_000, 110_000_000))
    text = metrics.render("", Counter(), 0)[0].decode()
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("launchbound_"))
    return {name.removeprefix("launchbound_"): float(value) for name, value in pairs}


def test_a_step_that_two_requests_share_is_counted_by_the_one_that_says_so() -> None:
    both = msgspec.structs.replace(ALONE, rows=2.0, alone=False)
    groups = [
        StepGroup(phase="prefill", batch=4, rows=2, timings=PREFILL),
        StepGroup(phase="decode", batch=4, rows=9, timings=DECODE),
    ]
    counting = msgspec.structs.replace(both, counted=groups, counted_switches=3)
    found = series("continuous", counting, both)
    decode, rows = '{batch="4",mode="eager",phase="decode"}', '{batch="4",mode="eager"}'
    assert found['requests_total{mode="eager",outcome="ok"}'] == 2
    assert (found[f"step_batch_rows_sum{rows}"], found[f"step_batch_rows_count{rows}"]) == (9, 5)
    for name, value in (("wall_seconds", 0.05), ("dispatch_seconds", 0.02)):
        assert found[f"step_batch_{name}_count{decode}"] == 5
        assert found[f"step_batch_{name}_sum{decode}"] == pytest.approx(value)
    assert found["engine_involuntary_switches_total"] == 3
    assert found['request_stall_seconds_count{mode="eager"}'] == 2


def test_without_batching_all_steps_of_a_request_count_and_nothing_stalls() -> None:
    found = series("off", None, None)
    rows = '{batch="4",mode="eager"}'
    assert found[f"step_batch_rows_sum{rows}"] == found[f"step_batch_rows_count{rows}"] == 10
    assert found["engine_involuntary_switches_total"] == 14
    assert not [name for name in found if name.startswith("request_stall")]


def test_a_request_may_ask_to_run_alone_and_a_comparison_always_does(
    own_front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, alone = own_front.state.client, list[bool]()
    submit = client.submit

    def recorded(job: Job, follows: bool = False) -> PendingRequest:
        alone.append(job.alone)
        return submit(job, follows)

    monkeypatch.setattr(client, "submit", recorded)
    own_front.generate()
    own_front.generate(alone=True)
    body = {"prompts": ["x"], "modes": ["eager"], "repeats": 1}
    assert own_front.http.post("/v1/compare", json=body).status_code == 200
    assert alone[:2] == [False, True]
    assert set(alone[2:]) == {True}
