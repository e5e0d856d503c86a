"""The lab's arithmetic, run where it runs: in the page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from loadtests.report import formatting
from tests.front.lab.test_play import duration
from tests.support.browser import Tab, tab
from tests.support.serving import Front

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page(browser: Browser, front: Front) -> Iterator[Tab]:
    with tab(browser, front.url) as opened:
        opened.open("/lab/runs")
        yield opened


def run(page: Tab, part: str, code: str, given: object = None) -> Any:
    """What `code`, which sees the exports of `part` as `it` and `given`, returns."""
    module = f"const it = await import('/lab/files/parts/{part}.js');"
    return page.page.evaluate(f"async (given) => {{ {module} {code} }}", given)


NUMBERS = [
    0.0,
    1.0,
    0.5,
    9.994,
    9.996,
    99.95,
    0.00031249,
    0.0312,
    4.57,
    123.0,
    12345.0,
    999.6,
    -2.345,
    1e-7,
    8e6,
]


def test_numbers_are_written_as_in_the_reports(page: Tab) -> None:
    written = run(page, "numbers", "return given.map((value) => it.significant(value))", NUMBERS)
    assert written == [formatting.significant(value) for value in NUMBERS]


def test_seconds_are_written_in_the_unit_that_fits_and_what_is_not_measured_is_a_dash(page: Tab) -> None:
    given = [1.5, 0.0123, 0.000045, 4e-8, 0, None]
    written = run(page, "numbers", "return given.map((value) => it.duration(value))", given)
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
    ("q", "seconds"),
    [(0.0, 0.0), (0.1, 0.00045), (0.5, 0.00225), (0.9, 0.004), (1.0, 0.004)],
)
def test_a_quantile_is_promqls(page: Tab, q: float, seconds: float) -> None:
    """By hand: of 45 observations, 10 are in the first bucket; what lies beyond 40 is at the last bound."""
    code = """const [before, after] = given.scrapes.map(it.parseMetrics);
      return it.quantile(given.q, before, after, "seconds", { mode: 'a"b' })"""
    found = run(page, "prometheus", code, {"q": q, "scrapes": [scrape(1), scrape(2)]})
    assert found == pytest.approx(seconds)


def test_what_is_absent_or_was_reset_is_null_and_not_0(page: Tab) -> None:
    code = """const [before, after] = given.map(it.parseMetrics);
      return [it.total(after, "none"), it.increase(before, after, "none"),
        it.increase(after, before, "seconds_bucket"), it.quantile(0.5, after, after, "seconds"),
        it.total(after, "n", { reason: "x, y" }), it.total(after, "up")]"""
    assert run(page, "prometheus", code, [scrape(1), scrape(2)]) == [None, None, None, None, 3, 1]


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
    assert run(page, "events", code, sent) == [expected] * 8


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
    assert run(page, "crossing", "return it.crossing(it.summary(given), 'eager')", given) == said


def test_runs_of_one_batch_are_averaged_and_kernel_has_the_interval_turned_round(page: Tab) -> None:
    given = runs((4, 2.0, 1.0), (4, 4.0, 3.0), (1, 1.0, 1.0), interval=0.5)
    first, second = run(page, "crossing", "return it.summary(given)", given)
    assert (first["batch"], first["runs"], second["batch"], second["runs"]) == (1, 1, 4, 2)
    assert second["dispatch"] == {"value": 3.0, "low": 2.5, "high": 3.5}
    assert second["kernel"] == {"value": 2.0, "low": 1.5, "high": 2.5}


def test_a_dispatch_that_may_be_the_whole_step_leaves_kernels_nothing(page: Tab) -> None:
    """And not the residue of a subtraction, which reads as a tiny time."""
    given = runs((1, 0.1, 0.2))
    given[0]["dispatch_high_seconds"] = 0.3
    assert run(page, "crossing", "return it.summary(given)[0].kernel.low", given) == 0


def test_a_part_that_one_run_did_not_tell_is_absent(page: Tab) -> None:
    given = runs((4, 2.0, 1.0), (4, 2.0, 1.0))
    given[0]["kernel_seconds"] = None
    assert run(page, "crossing", "return it.summary(given)[0].kernel", given) is None


def test_the_parts_of_a_gpu_have_the_wait_in_place_of_kernels(page: Tab, front: Front) -> None:
    timings = front.generate().json()["timings"] | {"sync_wait_seconds": 0.25, "kernel_seconds": None}
    parts = run(page, "timebar", "return it.partsOf(given)", json.loads(json.dumps(timings)))
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
    note, texts = run(page, "timebar", "return [it.partsOf(given)[1].note, it.samplesOf(given)]", timings)
    phases = timings["prefill"], timings["decode"]
    low, high = (sum(phase[f"dispatch_{end}_seconds"] for phase in phases) for end in ("low", "high"))
    assert note == f"sampled, {duration(low)} to {duration(high)}"
    counts = "40 kernel, 60 host, 3 system, 2 unclassified"
    assert texts == [f"Samples of {name}: {counts}; in {whose}." for name in ("prefill", "decode")]


def test_what_has_no_samples_names_none(page: Tab) -> None:
    phase = {"samples_of": None}
    assert run(page, "timebar", "return it.samplesOf(given)", {"prefill": phase, "decode": phase}) == []
