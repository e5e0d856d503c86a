"""What the front makes of merged requests: parts that add up, steps counted once, a queue that is true."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from service.front.engine_client import PendingRequests
from service.front.metrics.recorder import Metrics
from service.front.request_timing import add_up
from service.front.routes.answers import server_timing
from service.front.routes.engine_call import new_job
from service.front.routes.state import AppState
from service.front.schemas import CompareBody, GenerateBody
from service.front.settings import Settings
from service.records import (
    Begun,
    EngineStatus,
    Job,
    Outcome,
    Output,
    PhaseTimings,
    SharedWork,
    StepGroup,
    Timings,
)

ALONE = SharedWork(stall_seconds=0.0, rows=1.0, alone=True, counted=[], counted_switches=0)


def phase(steps: int) -> PhaseTimings:
    return PhaseTimings(
        steps=steps,
        wall_seconds=0.01 * steps,
        dispatch_seconds=0.004 * steps,
        device_span_seconds=None,
        kernel_seconds=0.006 * steps,
        sync_wait_seconds=None,
        period_seconds=0.011 * steps,
    )


def merged(name: str, shared: SharedWork | None) -> tuple[Job, Outcome]:
    timings = Timings(
        queue_seconds=0.002,
        prefill=phase(1),
        decode=phase(5),
        tokenise_seconds=0.0,
        involuntary_switches=7,
        dispatch_source="sampled",
        kernel_source="sampled",
        taken_ns=3_000_000,
        first_token_ns=20_000_000,
        done_ns=100_000_000,
        shared=shared,
    )
    outcome = Outcome(
        id=name,
        mode="eager",
        effective="eager",
        reason=None,
        kind="ok",
        batch_size=1,
        batch_bucket=4,
        outputs=[Output(text="", token_ids=[1] * 6, finish_reason="length")],
        timings=timings,
    )
    job = Job(id=name, mode="eager", prompts=["x"], max_new_tokens=6, sent_ns=1_000_000, deadline_ns=10**12)
    return job, outcome


def test_the_stall_is_a_part_of_the_total_and_dispatch_the_whole_steps() -> None:
    work = msgspec.structs.replace(ALONE, stall_seconds=0.02, rows=2.5, alone=False)
    parts = add_up(*merged("a", work), 0, 101_000_000, 110_000_000).parts
    assert parts.stall_seconds == 0.02
    assert parts.effective_batch == 2.5
    assert parts.sources["steps"] == "shared"
    assert parts.dispatch_seconds == pytest.approx(0.024)
    assert parts.kernel_seconds is not None
    known = parts.queue_seconds + parts.dispatch_seconds + parts.kernel_seconds + parts.stall_seconds
    assert known + parts.other_seconds == pytest.approx(parts.total_seconds)
    assert "stall;dur=20.0000" in server_timing(parts)


def test_a_request_that_is_not_merged_has_no_stall_and_its_own_steps() -> None:
    parts = add_up(*merged("a", None), 0, 101_000_000, 110_000_000).parts
    assert parts.stall_seconds is None
    assert (parts.effective_batch, parts.sources["steps"]) == (1.0, "own")
    assert "stall" not in server_timing(parts)


def series(batching: str, *works: SharedWork | None) -> dict[str, float]:
    """What requests of these kinds come to in /metrics."""
    metrics = Metrics(CollectorRegistry(), ["eager"], [1, 4], {"version": "", "commit": ""})
    status = dict.fromkeys(EngineStatus.__struct_fields__, 0) | {"batching": batching, "memory": None}
    status |= {"device": "cpu", "device_name": "", "model": "tiny", "dtype": "", "torch": "", "cuda": None}
    metrics.engine(EngineStatus(**{**status, "no_samples": None}))
    for number, work in enumerate(works):
        metrics.observe(add_up(*merged(str(number), work), 0, 101_000_000, 110_000_000))
    text = metrics.render("", Counter(), 0)[0].decode()
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("launchbound_"))
    return {name.removeprefix("launchbound_"): float(value) for name, value in pairs}


def test_a_step_that_two_requests_share_is_counted_by_the_one_that_says_so() -> None:
    both = msgspec.structs.replace(ALONE, rows=2.0, alone=False)
    counting = msgspec.structs.replace(
        both,
        counted=[
            StepGroup(phase="prefill", batch=4, rows=2, timings=phase(1)),
            StepGroup(phase="decode", batch=4, rows=9, timings=phase(5)),
        ],
        counted_switches=3,
    )
    found = series("continuous", counting, both)
    decode = '{batch="4",mode="eager",phase="decode"}'
    assert found["requests_total" + '{mode="eager",outcome="ok"}'] == 2
    rows = '{batch="4",mode="eager"}'
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


def test_who_has_begun_no_longer_waits() -> None:
    async def waiting() -> list[int]:
        requests = PendingRequests()
        a, b, _ = (requests.add(merged("same", None)[0]).job.id for _ in range(3))
        counts = [requests.waiting(paused=False), requests.waiting(paused=True)]
        requests.begin(Begun(ids=[a, b, "gone"]))
        counts.append(requests.waiting(paused=False))
        requests.finish(msgspec.structs.replace(merged("same", None)[1], id=a))
        counts.append(requests.waiting(paused=False))
        requests.finish(msgspec.structs.replace(merged("same", None)[1], id=b))
        return [*counts, requests.waiting(paused=True)]

    assert asyncio.run(waiting()) == [2, 3, 1, 1, 1]


def test_requests_cannot_be_profiled_by_turns_where_they_are_merged() -> None:
    options: dict[str, Any] = {"batching": "continuous", "profile_every": 100}
    with pytest.raises(ValueError, match="set batching to off"):
        Settings(**options)
    merging, alone = (Settings(batching=one).engine_settings("") for one in ("window", "off"))
    assert (merging.batching, merging.profile_every) == ("window", 0)
    assert (alone.batching, alone.profile_every) == ("off", None)


@pytest.mark.parametrize(
    ("body", "alone"),
    [
        (GenerateBody(prompts=["x"]), False),
        (GenerateBody(prompts=["x"], alone=True), True),
        (CompareBody(prompts=["x"]), True),
    ],
)
def test_a_request_may_ask_to_run_alone_and_a_comparison_always_does(
    body: GenerateBody | CompareBody, alone: bool
) -> None:
    state = cast(AppState, SimpleNamespace(settings=Settings()))
    assert new_job(state, "a", "eager", body, received_ns=0, seed=None).alone == alone
