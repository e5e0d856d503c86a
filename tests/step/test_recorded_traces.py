"""Sessions of a replayed graph, as the section `profiler` of `make gpu-check` recorded them on a device."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from service.step.trace import (
    DEVICE_WORK,
    GRAPH_LAUNCH_CALLS,
    Event,
    Matched,
    ProfiledStep,
    complete_events,
    match_work,
    read_steps,
    step_marks,
)

TRACES = sorted(Path(__file__).with_name("traces").glob("*.trace.json.gz"))
FIRST = [path for path in TRACES if "session-1." in path.name]
"""Of a process: in later ones CUPTI before 13.1 Update 1 gives graphs wrong ids."""


def loaded(path: Path) -> list[Event]:
    with gzip.open(path, "rt") as file:
        events: list[Event] = json.load(file)["traceEvents"]
    return complete_events(events)


def names_of(path: Path) -> str:
    return path.name.removesuffix(".trace.json.gz")


@pytest.fixture(params=TRACES, ids=names_of, scope="module")
def events(request: pytest.FixtureRequest) -> list[Event]:
    return loaded(request.param)


def kernels_of(events: list[Event], way: Matched) -> list[list[Event]]:
    return [work.kernels for work in match_work(events, step_marks(events), way)]


def numbers_of(steps: list[ProfiledStep]) -> list[tuple[int | None, float | None]]:
    return [(step.kernels, step.kernel_seconds) for step in steps]


def test_a_first_session_of_a_process_was_recorded() -> None:
    assert FIRST


def test_every_step_is_one_graph_launch_and_the_same_kernels(events: list[Event]) -> None:
    steps = read_steps(events, cuda=True)
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
    assert {step.matched for step in read_steps(events, cuda=True)} == {"correlation"}


def test_ids_that_are_off_by_one_launch_change_no_number(events: list[Event]) -> None:
    """The defect of CUPTI, made in a real trace: ids are then refused, and windows find the same kernels."""
    launches = [event for event in events if event["name"] in GRAPH_LAUNCH_CALLS]
    ids = [launch["args"]["correlation"] for launch in sorted(launches, key=lambda one: float(one["ts"]))]
    following = dict(zip(ids, [*ids[1:], ids[0]], strict=True))
    wrong = [
        {**event, "args": {**event["args"], "correlation": following.get(own, own)}}
        if event.get("cat") in DEVICE_WORK and (own := event["args"]["correlation"]) is not None
        else event
        for event in events
    ]
    steps = read_steps(wrong, cuda=True)
    assert {step.matched for step in steps} == {"window"}
    assert numbers_of(steps) == numbers_of(read_steps(events, cuda=True))
