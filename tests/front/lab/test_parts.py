"""The lab's arithmetic and drawings, run where they run: in the page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

import pytest
from playwright.sync_api import Browser

from loadtests.report import formatting
from service.anatomy.budget import Quantity, make_budget, step_of, without_dispatch
from service.statistics.boundedness import bounds_within
from service.statistics.intervals import Interval
from service.study_names import OF_THE_MODEL, OPERATOR_CALLS, TAPE_EXPRESSIONS
from tests.front.lab.test_views import duration
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


NUMBERS = [
    0.0, 1.0, 0.5, 9.994, 9.996, 99.95, 0.00031249, 0.0312, 4.57, 123.0, 12345.0, 999.6, -2.345, 1e-7, 8e6,
]  # fmt: skip


def test_numbers_are_written_as_in_the_reports(page: Tab) -> None:
    written = run(page, "parts/numbers", "return given.map((value) => it.significant(value))", NUMBERS)
    assert written == [formatting.significant(value) for value in NUMBERS]


def test_seconds_are_written_in_the_unit_that_fits_and_what_is_not_measured_is_a_dash(page: Tab) -> None:
    given = [1.5, 0.0123, 0.000045, 4e-8, 0, None]
    written = run(page, "parts/numbers", "return given.map((value) => it.duration(value))", given)
    assert written == ["1.50 s", "12.3 ms", "45.0 µs", "0.0400 µs", "0 µs", "–"]


BUCKETS = [("0.001", 0, 10), ("0.002", 5, 25), ("0.004", 5, 45), ("+Inf", 5, 50)]
"""Upper bound, and the count of two scrapes: 10, 10, 20 and 5 were observed between them."""


def scrape(place: int) -> str:
    lines = [f'launchbound_seconds_bucket{{le="{row[0]}",mode="a\\"b"}} {row[place]}.0' for row in BUCKETS]
    return (
        "# TYPE launchbound_seconds histogram\n"
        + "\n".join(lines)
        + '\nlaunchbound_n{reason="x, y"} 3.0\nup 1\n'
    )


@pytest.mark.parametrize(
    ("q", "seconds"), [(0.0, 0.0), (0.1, 0.00045), (0.5, 0.00225), (0.9, 0.004), (1.0, 0.004)]
)
def test_a_quantile_is_promqls(page: Tab, q: float, seconds: float) -> None:
    """By hand: of 45 observations, 10 are in the first bucket; what lies beyond 40 is at the last bound."""
    code = """const [before, after] = given.scrapes.map(it.parseMetrics);
      return it.quantile(given.q, before, after, "seconds", { mode: 'a"b' })"""
    found = run(page, "parts/prometheus", code, {"q": q, "scrapes": [scrape(1), scrape(2)]})
    assert found == pytest.approx(seconds)


def test_what_is_absent_or_was_reset_is_null_and_not_0(page: Tab) -> None:
    code = """const [before, after] = given.map(it.parseMetrics);
      return [it.total(after, "none"), it.increase(before, after, "none"),
        it.increase(after, before, "seconds_bucket"), it.quantile(0.5, after, after, "seconds"),
        it.total(after, "n", { reason: "x, y" }), it.total(after, "up")]"""
    assert run(page, "parts/prometheus", code, [scrape(1), scrape(2)]) == [None, None, None, None, 3, 1]


def test_events_are_read_whole_however_the_stream_is_cut(page: Tab) -> None:
    sent = 'event: token\ndata: {"text": "é\\n"}\n\n: alive\n\nevent: result\ndata: {"n":\ndata: 2}\n\n'
    code = """const bytes = new TextEncoder().encode(given); const found = [];
      for (let size = 1; size < 9; size++) {
        const cut = (_, place) => bytes.slice(place * size, (place + 1) * size);
        const pieces = Array.from({ length: Math.ceil(bytes.length / size) }, cut);
        const start = (to) => { pieces.forEach((piece) => to.enqueue(piece)); to.close(); };
        const body = new ReadableStream({ start });
        const events = []; for await (const event of it.readEvents(body)) events.push(event);
        found.push(events);
      }
      return found"""
    expected = [{"name": "token", "data": {"text": "é\n"}}, {"name": "result", "data": {"n": 2}}]
    assert run(page, "parts/events", code, sent) == [expected] * 8


def runs(*steps: tuple[int, float, float], interval: float | None = 0.0) -> list[dict[str, Any]]:
    """One run per (batch, dispatch, kernel), in ms; `interval`: of dispatch to both sides."""
    return [
        {
            "batch": batch,
            "dispatch_seconds": dispatch,
            "kernel_seconds": kernel,
            "wall_seconds": dispatch + kernel,
            "dispatch_low_seconds": None if interval is None else dispatch - interval,
            "dispatch_high_seconds": None if interval is None else dispatch + interval,
            "sources": {"dispatch": "sampled", "kernel": "sampled"},
        }
        for batch, dispatch, kernel in steps
    ]


BETWEEN = "The lines cross between batch 4 and 16"
CROSSED = ((1, 2.0, 1.0), (4, 2.0, 1.5), (16, 2.0, 6.0))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (runs(*CROSSED), f"{BETWEEN}."),
        (runs(*CROSSED, interval=0.4), f"{BETWEEN}, by values whose intervals overlap."),
        (runs(*CROSSED, interval=None), f"{BETWEEN}; no interval is known."),
        (runs(*CROSSED[:2]), "No crossover up to batch 4: dispatch takes longer than kernels."),
        (
            runs((1, 2.0, 2.5), (4, 2.0, 6.0), interval=0.4),
            "Kernels take longer than dispatch from batch 1 on, by values whose intervals overlap.",
        ),
        (
            runs((1, 2.0, 1.0), (4, 1.0, 2.0), (16, 2.0, 1.0)),
            "The lines cross between batch 1 and 4, though not at every batch after it.",
        ),
        (runs(*CROSSED[2:]), "Kernels take longer than dispatch from batch 16 on."),
        ([], "Dispatch and kernel of eager cannot be told apart here."),
    ],
)
def test_a_crossover_is_named_only_where_measured_values_show_it(page: Tab, given: object, said: str) -> None:
    assert run(page, "parts/crossing", "return it.crossing(it.summary(given), 'eager')", given) == said


def test_runs_of_one_batch_are_averaged_and_kernel_has_the_interval_turned_round(page: Tab) -> None:
    given = runs((4, 2.0, 1.0), (4, 4.0, 3.0), (1, 1.0, 1.0), interval=0.5)
    first, second = run(page, "parts/crossing", "return it.summary(given)", given)
    assert (first["batch"], first["runs"], second["batch"], second["runs"]) == (1, 1, 4, 2)
    assert second["dispatch"] == {"value": 3.0, "low": 2.5, "high": 3.5}
    assert second["kernel"] == {"value": 2.0, "low": 1.5, "high": 2.5}


def test_the_parts_of_a_gpu_have_the_wait_in_place_of_kernels(page: Tab, front: Front) -> None:
    timings = front.generate().json()["timings"] | {"sync_wait_seconds": 0.25, "kernel_seconds": None}
    parts = run(page, "parts/timebar", "return it.partsOf(given)", json.loads(json.dumps(timings)))
    assert [part["name"] for part in parts] == ["queue", "dispatch", "sync wait", "other"]
    assert parts[2]["seconds"] == 0.25
    assert "until a request is profiled" in parts[2]["note"]


@pytest.mark.parametrize(
    ("sampled", "whose"), [(True, "its own steps"), (False, "the newest steps like its own")]
)
def test_a_split_says_its_interval_and_the_samples_of_each_phase(
    page: Tab, front: Front, sampled: bool, whose: str
) -> None:
    timings = front.generate(sample=sampled).json()["timings"]
    note, texts = run(
        page, "parts/timebar", "return [it.partsOf(given)[1].note, it.samplesOf(given)]", timings
    )
    phases = timings["prefill"], timings["decode"]
    low, high = (sum(phase[f"dispatch_{end}_seconds"] for phase in phases) for end in ("low", "high"))
    assert note == f"sampled, {duration(low)} to {duration(high)}"
    counts = "40 kernel, 60 host, 3 system, 2 unclassified"
    assert texts == [f"Samples of {name}: {counts}; in {whose}." for name in ("prefill", "decode")]


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
    "name": "self", "shape": [2, 3], "dtype": "float32", "tensor_bytes": 24, "storage_bytes": 24,
    "storage": 0,
}  # fmt: skip


def node(index: int, *feeds: int, saved: int = 0) -> dict[str, Any]:
    kept = [{**SAVED, "kind": "intermediate", "of": None}] * saved
    return {"index": index, "name": f"Node{index}", "feeds": feeds, "saved": kept}


def operator(recorded_as: int | None) -> dict[str, Any]:
    fixed = {"operator": "aten.mm.default", "shape": [2, 3], "new_bytes": 24, "is_view": False}
    return {**fixed, "node": recorded_as}


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


def block(lane: str, row: int, depth: int, begin: float) -> dict[str, Any]:
    place = {"lane": lane, "row": row, "depth": depth}
    return {"name": "b", "kind": "mark", **place, "begin_us": begin, "duration_us": 1}


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
