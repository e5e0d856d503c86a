"""What the views of studies compute in the page: as the studies' own functions, and drawn within bounds."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise, product
from typing import Any

import pytest
from playwright.sync_api import Browser

from service.anatomy.budget import Quantity, make_budget, step_of, without_dispatch
from service.statistics.boundedness import bounds_within
from service.statistics.intervals import Interval
from service.study_names import OF_THE_MODEL, OPERATOR_CALLS, TAPE_EXPRESSIONS
from tests.support.browser import Tab, tab
from tests.support.serving import Front

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page(browser: Browser, front: Front) -> Iterator[Tab]:
    with tab(browser, front.url) as opened:
        opened.open("/lab/probes")
        yield opened


def run(page: Tab, file: str, code: str, given: object = None) -> Any:
    """What `code` returns, which sees the exports of a file of the lab as `it`, and `given`."""
    source = f"async (given) => {{ const it = await import('/lab/files/{file}.js'); {code} }}"
    return page.page.evaluate(source, given)


BUDGETS = list(product((1, 7, 324, 2000), (0.3, 4.8, 25.0), (0.5, 60.0, 1555.2, 90000.0)))
"""Operators, microseconds per operator, kernel microseconds; at 324 × 4.8 of dispatch, kernels equal it."""


def test_a_budget_is_that_of_the_study_on_a_grid(page: Tab) -> None:
    found = run(page, "parts/budget", "return given.map((each) => it.budgetOf(...each))", BUDGETS)
    texts = run(page, "parts/budget", "return it.HELP")
    for values, one in zip(BUDGETS, found, strict=True):
        expected = make_budget(
            "eager", 1, *(Quantity(value=value, source="given") for value in values), device="cuda"
        )
        assert one["dispatch"] == pytest.approx(expected.dispatch_microseconds)
        assert one["share"] == pytest.approx(expected.device_bound_index)
        assert one["bound"] == expected.bound
        assert expected.will_compile_help.startswith(texts[one["bound"]] + ": ")
    assert {one["bound"] for one in found} == {"launch-bound", "balanced", "kernel-bound"}


def test_a_class_is_named_only_where_both_intervals_allow_it(page: Tab) -> None:
    """As the service's own rule, over the index at the worse ends of dispatch and kernel."""
    ends = [(90, 110, 5, 10), (90, 110, 5, 40), (90, 110, 20, 300), (1, 2, 300, 400), (0, 5, 0, 7)]
    given = [[{"low": a, "high": b}, {"low": c, "high": d}] for a, b, c, d in ends]
    found = run(page, "parts/budget", "return given.map((each) => it.boundsWithin(...each))", given)
    for (low, high, least, most), classes in zip(ends, found, strict=True):
        index = Interval(0.5, least / (least + high), most / (most + low), 9)
        assert tuple(classes) == bounds_within(index)
    open_ended = [{"low": 1.0, "high": None}, {"low": None, "high": None}]
    every = run(page, "parts/budget", "return it.boundsWithin(...given)", open_ended)
    assert every == ["launch-bound", "balanced", "kernel-bound"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_removing_dispatch_buys_is_as_in_the_study(page: Tab, device: str) -> None:
    code = """return given.grid.map(([operators, each, kernel]) => {
      const step = it.stepOf(operators * each, kernel, given.device);
      return [step, it.withoutDispatch(step, kernel), it.withoutDispatch(step, kernel, 0.9)]; })"""
    found = run(page, "parts/budget", code, {"grid": BUDGETS, "device": device})
    for (operators, each, kernel), (step, none_left, some_left) in zip(BUDGETS, found, strict=True):
        assert step == pytest.approx(step_of(operators * each, kernel, device))
        assert none_left == pytest.approx(without_dispatch(step, kernel))
        assert some_left == pytest.approx(without_dispatch(step, kernel, 0.9))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_a_mode_buys_is_as_in_the_study(page: Tab, device: str) -> None:
    grid = list(product((0.0, 0.36, 1.4), (0.0, 0.7, 1.0), (12.0, 900.0), (0.0, 50.0, 900.0)))
    code = "return given.grid.map((each) => it.speedupWith(...each, given.device))"
    found = run(page, "parts/budget", code, {"grid": grid, "device": device})
    left = [step_of(dispatch * a, kernel * b, device) for a, b, dispatch, kernel in grid]
    whole = [step_of(dispatch, kernel, device) for _, _, dispatch, kernel in grid]
    expected = [step / rest if rest > 0 else None for step, rest in zip(whole, left, strict=True)]
    assert found == [pytest.approx(one) for one in expected]
    assert None in found


def test_the_calls_and_expressions_to_choose_are_those_that_the_studies_know(page: Tab) -> None:
    """Both lists are short and stand in the page, so that it can be drawn before it asks for anything."""
    assert run(page, "views/dispatcher", "return it.CALLS") == list(OPERATOR_CALLS.values())
    options = run(page, "views/tape", "return it.EXPRESSIONS")
    assert {option["value"] for option in options} == {*TAPE_EXPRESSIONS, *OF_THE_MODEL}
    shown = {option["value"]: option["label"] for option in options if option["value"] not in OF_THE_MODEL}
    assert shown == TAPE_EXPRESSIONS


def test_ticks_are_round_rising_and_within_the_axis(page: Tab) -> None:
    axes = [(0, 1200, 8), (0, 1200, 2), (311.5, 312.5, 6), (0.002, 0.0021, 5), (0, 0.7, 3), (999, 10001, 10)]
    for (begin, end, count), found in zip(
        axes, run(page, "parts/axis", "return given.map((axis) => it.ticks(...axis))", axes), strict=True
    ):
        assert 1 <= len(found) <= count + 1
        assert all(begin - 1e-9 <= tick <= end + 1e-9 for tick in found)
        steps = {round((after - before) / (end - begin), 6) for before, after in pairwise(found)}
        assert len(steps) <= 1


def test_zooming_and_moving_stay_within_the_step(page: Tab) -> None:
    code = """const seen = []; let span = [0, 100];
      for (const [name, ...rest] of given) { span = it[name](span, ...rest); seen.push(span); }
      return seen"""
    moves = [
        ["zoomed", 0.5, 100], ["zoomed", 0.5, 100, 25], ["moved", -2, 100], ["moved", 50, 100],
        ["zoomed", 0.0001, 100], ["zoomed", 1e9, 100], ["zoomed", 0.1, 100, 0], ["showing", 70, 80, 100],
        ["showing", 72, 75, 100],
    ]  # fmt: skip
    found = run(page, "parts/span", code, moves)
    assert found[:4] == [[25, 75], [25, 50], [0, 25], [75, 100]]
    assert all(0 <= begin < end <= 100 for begin, end in found)
    assert found[5] == [0, 100]
    assert found[6] == [0, 10]
    assert found[7][0] <= 70 < 80 <= found[7][1]
    assert found[8] == found[7]


SAVED = {
    "name": "self",
    "shape": [2, 3],
    "dtype": "float32",
    "tensor_bytes": 24,
    "storage_bytes": 24,
    "storage": 0,
}


def node(index: int, *feeds: int, saved: int = 0) -> dict[str, Any]:
    kept = [{**SAVED, "kind": "intermediate", "of": None}] * saved
    return {"index": index, "name": f"Node{index}", "feeds": feeds, "saved": kept}


def operator(recorded_as: int | None) -> dict[str, Any]:
    return {
        "operator": "aten.mm.default",
        "shape": [2, 3],
        "new_bytes": 24,
        "is_view": False,
        "node": recorded_as,
    }


FORWARD = [operator(3), operator(None), operator(1), operator(0)]
BACKWARD = [node(0, 1), node(1, 2, 3, saved=2), node(2), node(3, 4, 5, saved=1), node(4), node(5)]


def test_no_two_boxes_of_a_tape_overlap_and_all_lie_in_the_drawing(page: Tab) -> None:
    code = "return [it.tapeLayout(given.forward, given.backward), it.BOX]"
    layout, box = run(page, "parts/tape-layout", code, {"forward": FORWARD, "backward": BACKWARD})
    boxes = layout["operators"] + layout["nodes"]
    assert len(boxes) == len(FORWARD) + len(BACKWARD)
    for one, other in combinations(boxes, 2):
        assert abs(one["x"] - other["x"]) >= box["width"] or abs(one["y"] - other["y"]) >= box["height"]
    assert all(one["x"] + box["width"] <= layout["width"] for one in boxes)
    assert all(one["y"] + box["height"] <= layout["height"] for one in boxes)


def test_a_node_stands_below_its_operator_with_one_edge_per_saved_tensor_and_per_feed(page: Tab) -> None:
    code = "return it.tapeLayout(given.forward, given.backward)"
    layout = run(page, "parts/tape-layout", code, {"forward": FORWARD, "backward": BACKWARD})
    above = {one["operator"]["node"]: one["x"] for one in layout["operators"]}
    below = {one["node"]["index"]: one["x"] for one in layout["nodes"]}
    assert {index: below[index] for index in (0, 1, 3)} == {index: above[index] for index in (0, 1, 3)}
    assert len(layout["saved"]) == 3
    assert len(layout["feeds"]) == sum(len(one["feeds"]) for one in BACKWARD)


def test_a_computation_without_a_tape_has_operators_alone(page: Tab) -> None:
    code = "return it.tapeLayout(given, [])"
    layout = run(page, "parts/tape-layout", code, [operator(None), operator(None)])
    assert (len(layout["operators"]), layout["nodes"], layout["saved"], layout["feeds"]) == (2, [], [], [])


def block(lane: str, row: int, depth: int, begin: float) -> dict[str, Any]:
    return {
        "name": "b",
        "kind": "mark",
        "lane": lane,
        "row": row,
        "depth": depth,
        "begin_us": begin,
        "duration_us": 1,
    }


def test_every_block_has_a_lane_of_its_thread_or_stream_and_depth(page: Tab) -> None:
    places = [("host", 9, 0), ("device", 7, 0), ("host", 9, 1), ("host", 4, 0)]
    tracks = [
        {"mode": "eager", "blocks": [block(*place, begin) for begin, place in enumerate(places)]},
        {"mode": "compiled", "blocks": [block("host", 9, 0, 0), block("host", 9, 0, 3)]},
    ]
    layout = run(page, "parts/lanes", "return it.laneLayout(given)", tracks)
    assert [head["text"] for head in layout["heads"]] == [
        "eager · host",
        "eager · host, thread 4",
        "eager · device, stream 7",
        "compiled · host",
    ]
    assert sum(len(lane["blocks"]) for lane in layout["lanes"]) == 6
    places = [lane["y"] for lane in layout["lanes"]]
    assert places == sorted(set(places))
    assert layout["height"] > places[-1]
