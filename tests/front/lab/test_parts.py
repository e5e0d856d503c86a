"""The lab's arithmetic and drawings, run where they run: in the page."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from playwright.sync_api import Browser

from loadtests.report import formatting
from service.anatomy.budget import Quantity, make_budget, step_of
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


NUMBERS = [
    0.0, 1.0, 0.5, 9.994, 9.996, 99.95, 0.00031249, 0.0312, 4.57, 123.0, 12345.0, 999.6, -2.345, 1e-7, 8e6,
]  # fmt: skip


def test_numbers_are_written_as_in_the_reports(page: Tab) -> None:
    written = run(page, "parts/numbers", "return given.map((value) => it.significant(value))", NUMBERS)
    assert written == [formatting.significant(value) for value in NUMBERS]


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
    assert run(page, "parts/client", code, sent) == [expected] * 8


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
    assert run(page, "parts/batch-curve", "return it.crossing(it.summary(given), 'eager')", given) == said


def test_the_parts_of_a_gpu_have_the_wait_in_place_of_kernels(page: Tab, front: Front) -> None:
    timings = front.generate().json()["timings"] | {"sync_wait_seconds": 0.25, "kernel_seconds": None}
    parts = run(page, "parts/timebar", "return it.partsOf(given, ['prefill', 'decode'])", timings)
    assert [part["name"] for part in parts] == ["queue", "dispatch", "sync wait", "other"]
    assert parts[2]["seconds"] == 0.25
    assert "until a request is profiled" in parts[2]["note"]


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
