"""What is read from a profiler trace, each in its own step; what cannot be is unknown rather than fewer."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from service.step import trace
from tests.step.made import (
    KERNEL_US,
    KERNELS,
    PERIOD_US,
    call,
    event,
    graph_id,
    kernel,
    plain_step,
    replays,
    without_device_work,
)

TWO_STEPS = [
    event("cuda_runtime", "cudaLaunchKernel", -20, 5, 5),
    event("kernel", "separates", -12, 2, 5),
    event("user_annotation", f"{trace.STEP_MARK} prefill 16/64", 0, 100),
    event("cpu_op", "aten::linear", 1, 20),
    event("cpu_op", "aten::mm", 2, 15),
    event("cpu_op", "aten::copy_", 3, 2),
    event("cuda_runtime", "cudaLaunchKernel", 5, 5, 7),
    event("cpu_op", "aten::add", 30, 10),
    event("cuda_runtime", "cudaLaunchKernel", 60, 10, 8),
    event("kernel", "gemm", 12, 20, 7),
    event("kernel", "add", 75, 5, 8),
    event("cuda_runtime", "cudaLaunchKernel", 120, 5, 6),
    event("kernel", "separates", 130, 2, 6),
    event("user_annotation", f"{trace.STEP_MARK} decode 1/64", 200, 50),
    event("cpu_op", "Torch-Compiled Region: 0/0", 201, 40),
    event("cuda_runtime", "cudaGraphLaunch", 205, 10, 9),
    *(event("kernel", f"k{n}", 220 + 10 * n, 6, 9) for n in range(3)),
    event("cuda_runtime", "cudaEventRecord", 216, 1, 10),
]


def test_operators_are_outermost_calls_into_the_dispatcher() -> None:
    first, second = trace.read_steps(TWO_STEPS, cuda=True)
    assert (first.shape, second.shape) == ((16, 64), (1, 64))
    assert first.operators == 2
    assert second.operators == 0


def test_without_a_device_there_are_no_kernels_rather_than_none_of_them() -> None:
    step = trace.read_steps(TWO_STEPS, cuda=False)[0]
    assert step.kernels is step.launches is step.kernel_seconds is step.unknown is None


def test_self_time_leaves_out_what_an_operator_called() -> None:
    table = {row["name"]: row for row in trace.operator_table(TWO_STEPS)}
    assert table["aten::linear"]["self_seconds"] == pytest.approx(5e-6)
    assert table["aten::mm"]["self_seconds"] == pytest.approx(13e-6)
    assert "Torch-Compiled Region: 0/0" not in table


STEPS = 4
REPLAY_SECONDS = pytest.approx(KERNELS * KERNEL_US / 1e6)


def unknown_to_the_trace(step: int) -> int:
    return 90_000 + step


def of_the_next_launch(step: int) -> int:
    return graph_id((step + 1) % STEPS)


def of_a_plain_launch(step: int) -> int:
    return graph_id(step) + 1


def of_a_call_that_launches_nothing(step: int) -> int:
    return graph_id(step) + 3


WRONG_IDS = (unknown_to_the_trace, of_the_next_launch, of_a_call_that_launches_nothing)


def no_device_part(step: trace.ProfiledStep) -> bool:
    device_part = (step.kernels, step.kernel_seconds, step.kernel_sum_seconds, step.matched)
    return all(value is None for value in device_part)


@pytest.mark.parametrize("device_clock", [0.0, -9.0, 9.0, -3 * PERIOD_US])
@pytest.mark.parametrize("kernel_id", WRONG_IDS)
def test_with_wrong_ids_of_graph_launches_a_step_is_what_ran_in_its_window_by_the_devices_clock_alone(
    kernel_id: Callable[[int], int], device_clock: float
) -> None:
    for step in trace.read_steps(replays(STEPS, kernel_id, device_clock), cuda=True):
        assert (step.kernels, step.launches, step.matched) == (KERNELS, 1, "window")
        assert step.kernel_seconds == REPLAY_SECONDS


IDS = (of_a_plain_launch, unknown_to_the_trace, of_the_next_launch, graph_id)
NO_DEVICE_WORK = without_device_work(replays(2))
FOREIGN = kernel("of a process's earlier session", 5.0, 77_777)


@pytest.mark.parametrize(
    ("events", "why"),
    [
        *((replays(STEPS, kernel_id, separated=False), trace.NOT_SEPARATED) for kernel_id in IDS),
        # Ninety kernels claim the id of the copy before the step: it is one of ninety-one.
        (replays(STEPS, of_a_plain_launch), trace.NOT_SEPARATED),
        ([FOREIGN, *replays(STEPS, kernels=lambda _: 0)], "1 launches have only 0 kernels in the trace"),
        (NO_DEVICE_WORK, trace.NOTHING_RECORDED),
        ([e for e in NO_DEVICE_WORK if e["cat"] != "cuda_runtime"], trace.NOTHING_RECORDED),
    ],
)
def test_kernels_that_cannot_be_told_apart_or_were_not_recorded_are_unknown_and_never_0(
    events: list[trace.Event], why: str
) -> None:
    calls = any(e["cat"] == "cuda_runtime" for e in events)
    for step in trace.read_steps(events, cuda=True):
        assert no_device_part(step)
        assert step.unknown == why
        assert step.launches == (1 if calls else None)


def fewer(kernel_id: Callable[[int], int]) -> list[trace.Event]:
    """The second step has lost kernels."""
    return replays(STEPS, kernel_id, kernels=lambda step: 50 if step == 1 else KERNELS)


LOST = "1 of 1 launches have no kernel in the trace"
NO_FIRST_LAUNCH = [
    e for e in replays(STEPS) if not (e["name"] == "cudaGraphLaunch" and e["ts"] < 2 * PERIOD_US)
]
NO_KERNEL_11 = [
    e
    for e in plain_step(1000, 10) + plain_step(2000, 20)
    if not (e["cat"] == "kernel" and e["args"]["correlation"] == 11)
]


@pytest.mark.parametrize(
    ("events", "place", "why"),
    [
        (without_device_work(replays(STEPS), until=2 * PERIOD_US - 20), 0, LOST),
        (fewer(graph_id), 1, "50 kernels, where 90 are usual"),
        (fewer(unknown_to_the_trace), 1, "50 kernels, where 90 are usual"),
        (NO_FIRST_LAUNCH, 0, trace.NO_LAUNCH),
        (NO_KERNEL_11, 0, "1 of 4 launches have no kernel in the trace"),
    ],
)
def test_a_step_that_lost_kernels_or_its_launch_is_unknown_and_the_others_are_not(
    events: list[trace.Event], place: int, why: str
) -> None:
    steps = trace.read_steps(events, cuda=True)
    lost = steps.pop(place)
    assert no_device_part(lost)
    assert lost.unknown == why
    (kernels,) = {step.kernels for step in steps}
    assert kernels in (KERNELS, 4)


def test_plain_steps_that_nothing_separates_are_matched_by_their_ids() -> None:
    steps = trace.read_steps(plain_step(1000, 10) + plain_step(2000, 20), cuda=True)
    assert [(step.kernels, step.matched) for step in steps] == [(4, "correlation")] * 2


def test_ids_of_replays_are_proved_by_those_that_something_separates() -> None:
    events = [e for e in replays(STEPS) if e["ts"] >= PERIOD_US]  # nothing is launched before the first step
    steps = trace.read_steps(events, cuda=True)
    assert [(step.kernels, step.matched) for step in steps] == [(KERNELS, "correlation")] * STEPS


def test_steps_of_another_name_may_have_another_number_of_kernels() -> None:
    prefill = plain_step(1000, 10, kernels=3, name=f"{trace.STEP_MARK} prefill 16/64")
    decode = [
        plain_step(2000 + 500 * n, 20 + 10 * n, name=f"{trace.STEP_MARK} decode 1/64") for n in range(3)
    ]
    steps = trace.read_steps(sum(decode, prefill), cuda=True)
    assert [step.kernels for step in steps] == [3, 4, 4, 4]
    assert trace.seconds_by_shape(steps) == {(16, 64): [60e-6], (1, 64): [80e-6] * 3}


def test_kernels_of_streams_that_overlap_count_once_in_kernel_seconds_and_each_in_their_sum() -> None:
    events = [
        call("cudaLaunchKernel", -20, 4),
        kernel("put", -12, 4),
        event("user_annotation", trace.STEP_MARK, 0, 20),
        call("cudaGraphLaunch", 1, 5, 9.0),
        kernel("a", 20, 5, length=30, stream=7),
        kernel("b", 30, 5, length=10, stream=13),
        kernel("c", 45, 5, length=15, stream=13),
        kernel("d", 70, 5, length=5, stream=7),
    ]
    (step,) = trace.read_steps(events, cuda=True)
    assert step.kernels == 4
    assert step.kernel_seconds == pytest.approx(45e-6)  # 20 to 60 and 70 to 75
    assert step.kernel_sum_seconds == pytest.approx(60e-6)


# Sessions of a replayed graph, as the section `profiler` of `make gpu-check` recorded them on a device

TRACES = sorted(Path(__file__).with_name("traces").glob("*.trace.json.gz"))
FIRST = [path for path in TRACES if "session-1." in path.name]
"""Of a process: in later ones CUPTI before 13.1 Update 1 gives graphs wrong ids."""


def loaded(path: Path) -> list[trace.Event]:
    with gzip.open(path, "rt") as file:
        events: list[trace.Event] = json.load(file)["traceEvents"]
    return trace.complete_events(events)


def names_of(path: Path) -> str:
    return path.name.removesuffix(".trace.json.gz")


@pytest.fixture(params=TRACES, ids=names_of, scope="module")
def events(request: pytest.FixtureRequest) -> list[trace.Event]:
    return loaded(request.param)


def kernels_of(events: list[trace.Event], way: trace.Matched) -> list[list[trace.Event]]:
    return [work.kernels for work in trace.match_work(events, trace.step_marks(events), way)]


def numbers_of(steps: list[trace.ProfiledStep]) -> list[tuple[int | None, float | None]]:
    return [(step.kernels, step.kernel_seconds) for step in steps]


def test_a_first_session_of_a_process_was_recorded() -> None:
    assert FIRST


def test_every_step_is_one_graph_launch_and_the_same_kernels(events: list[trace.Event]) -> None:
    steps = trace.read_steps(events, cuda=True)
    assert len(steps) > 1
    assert {(step.launches, step.graph_launches, step.unknown) for step in steps} == {(1, 1, None)}
    names = [Counter(kernel["name"] for kernel in kernels) for kernels in kernels_of(events, "window")]
    assert all(own == names[0] for own in names)
    assert {step.kernels for step in steps} == {names[0].total()}
    assert names[0].total() > 1
    assert all(0 < (step.kernel_seconds or 0) <= (step.kernel_sum_seconds or 0) for step in steps)


@pytest.mark.parametrize("path", FIRST, ids=names_of)
def test_in_a_processs_first_session_kernels_by_id_are_those_by_window(path: Path) -> None:
    events = loaded(path)
    assert kernels_of(events, "correlation") == kernels_of(events, "window")
    assert {step.matched for step in trace.read_steps(events, cuda=True)} == {"correlation"}


def test_ids_that_are_off_by_one_launch_change_no_number(events: list[trace.Event]) -> None:
    """The defect of CUPTI, made in a real trace: ids are then refused, and windows find the same kernels."""
    launches = [event for event in events if event["name"] in trace.GRAPH_LAUNCH_CALLS]
    ids = [launch["args"]["correlation"] for launch in sorted(launches, key=lambda one: float(one["ts"]))]
    following = dict(zip(ids, [*ids[1:], ids[0]], strict=True))
    wrong = [
        {**event, "args": {**event["args"], "correlation": following.get(own, own)}}
        if event.get("cat") in trace.DEVICE_WORK and (own := event["args"]["correlation"]) is not None
        else event
        for event in events
    ]
    steps = trace.read_steps(wrong, cuda=True)
    assert {step.matched for step in steps} == {"window"}
    assert numbers_of(steps) == numbers_of(trace.read_steps(events, cuda=True))
