"""What the views of studies show of answers that a small machine does not give: refusals, absences, a GPU's tracks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.front.lab.study_pages import Finding, answer, data, keep, quantity, row, rows, stream, the_answer
from tests.support.browser import Tab, tab
from tests.support.serving import Front, running, until

pytestmark = pytest.mark.browser

EXAMPLE = Path(__file__).parents[2] / "anatomy" / "operator_call_finding.json"
STUDIES = {"dispatcher": "operator", "timeline": "timeline", "tape": "tape", "budget": "budget"}
"""The study behind the first button of each view."""

PROBE = {
    "name": "sync-point",
    "without": {"median_seconds": 0.001, "low": 0.0009, "high": 0.0011, "samples": 41},
    "with": {"median_seconds": 0.002, "low": None, "high": None, "samples": 5},
    "ratio": {"value": 1.004, "low": 0.99, "high": 1.01, "samples": 41},
    "verdict": "no detectable difference",
    "counter": {"name": "sync_points", "before": 0, "after": 6},
    "blame": "service/anatomy/probes/modes.py:31",
    "cure": "Leave the value on the device.",
    "teaches": "a wait",
    "notes": ["on a CPU it does not wait"],
    "device": "cpu",
    "batch_size": 1,
    "phase": "decode",
    "layers": 6,
}


@pytest.fixture
def page(browser: Browser, front: Front) -> Iterator[Tab]:
    with tab(browser, front.url) as opened:
        yield opened


def call(**changes: Any) -> Finding:
    found: Finding = json.loads(EXAMPLE.read_text()) | changes
    return found


def finished(identity: str, finding: Finding) -> tuple[str, object]:
    created = "2026-01-01T00:00:00+00:00"
    kept = {"id": identity, "study": "operator", "arguments": {}, "created": created, "finding": finding}
    return "finding", kept


@pytest.mark.parametrize("view", STUDIES)
def test_before_anything_ran_a_view_says_what_to_do(page: Tab, view: str) -> None:
    page.open(f"/lab/{view}", ".study")
    assert "yet" in page.page.locator(".empty").first.inner_text()
    assert page.page.locator("button.primary").first.is_enabled()


@pytest.mark.parametrize("view", [*STUDIES, "probes"])
def test_during_a_sweep_a_view_says_that_it_waits_and_for_how_long(page: Tab, view: str) -> None:
    message = "a sweep is in progress, which a study would disturb: wait until it has ended"
    problem = {"error": {"type": "run_in_progress", "message": message, "param": None}}
    address = f"**/v1/studies/{STUDIES[view]}" if view in STUDIES else "**/v1/probes/*"
    answer(page, address, problem, 409, {"Retry-After": "17"})
    page.open(f"/lab/{view}", ".study")
    page.page.locator("button.primary").first.click()
    said = page.text('.failed[data-type="run_in_progress"]')
    assert "A sweep is measuring: the lab waits." in said
    assert message in said
    assert "Try again in 17 s." in said
    page.expected("409")


def test_a_study_that_fails_on_its_way_is_shown_and_can_be_tried_again(page: Tab) -> None:
    problem = {"error": {"type": "study_interrupted", "message": "the engine served meanwhile; try again", "param": None}}
    stream(page, "**/v1/studies/operator", ("progress", {"message": "round 3", "done": 2, "total": 15}), ("error", problem))  # fmt: skip
    page.open("/lab/dispatcher", ".study")
    page.page.locator("button.primary").first.click()
    assert "the engine served meanwhile; try again" in page.text(".failed")
    page.page.unroute("**/v1/studies/operator")
    stream(page, "**/v1/studies/operator", finished("operator-2", call()))
    page.page.get_by_role("button", name="Try again").click()
    page.page.wait_for_selector(".scrubber")
    assert page.page.locator(".failed").count() == 0


def test_a_link_to_a_finding_that_is_gone_says_so_and_leaves_the_button(page: Tab) -> None:
    answer(page, "**/v1/studies", {"studies": []})
    page.open("/lab/timeline?finding=timeline-7", ".failed")
    assert "the finding timeline-7 is not kept any more: measure it again" in page.text(".failed")
    assert page.page.get_by_role("button", name="Draw both steps").is_enabled()


def test_a_link_opens_no_finding_of_another_study(page: Tab) -> None:
    identity = keep(page, "tape", {})
    page.open(f"/lab/timeline?finding={identity}", ".failed")
    assert "is not kept any more" in page.text(".failed")


def test_the_slider_scrubs_through_every_slice_with_its_time_and_the_sum_so_far(page: Tab) -> None:
    finding = call()
    page.open(f"/lab/dispatcher?finding={keep(page, 'operator', finding)}", ".scrubber")
    slider = page.page.get_by_role("slider", name="Slice")
    slider.focus()
    for place, one in enumerate(finding["slices"]):
        assert page.value(".one", "data-slice") == one["name"]
        assert slider.get_attribute("aria-valuetext") == f"{place + 1} of {len(finding['slices'])}: {one['name']}"
        said = page.text(".one")
        assert all(key in said for key in one["keys"])
        if one["microseconds"] is None:
            assert f"not measured: {one['why_not']}" in said
        else:
            assert quantity(said) == pytest.approx(one["microseconds"]["value"] * 1e-6, rel=6e-3)
            assert one["method"] in said
        assert ("not in the sum" in said) == (one["microseconds"] is not None and not one["in_sum"])
        if one["running_microseconds"]:
            so_far = quantity(said.partition("So far")[2])
            assert so_far == pytest.approx(one["running_microseconds"]["value"] * 1e-6, rel=6e-3)
        slider.press("ArrowRight")
    assert rows(page, "Slices, from") == len(finding["slices"])
    assert rows(page, "Dispatch keys of") == len(finding["table"])
    assert data(page) == finding


def test_a_switch_shows_its_own_measurement_or_says_that_there_is_none(page: Tab) -> None:
    page.open(f"/lab/dispatcher?finding={keep(page, 'operator', call())}", ".scrubber")
    page.page.get_by_role("radio", name="inference mode").check(force=True)
    assert "has not been measured with these switches" in page.text(".empty >> nth=0")
    whole = {"value": 0.9, "low": 0.8, "high": 1.0, "samples": 15}
    without = call(grad="inference_mode", whole_microseconds=whole, key_set=["CPU"])
    stream(page, "**/v1/studies/operator", finished("operator-2", without))
    page.page.get_by_role("button", name="Measure this call").click()
    page.page.wait_for_selector(".scrubber")
    assert rows(page, "Measured on this page") == 2
    assert quantity(row(page, "Measured on this page", 1)["whole"]) == pytest.approx(0.9e-6)
    said = the_answer(page)
    assert quantity(said) == pytest.approx(0.58e-6)
    assert "34 % of the call" in said
    assert said.endswith("its keys there: CPU.")
    page.page.get_by_role("radio", name="on", exact=True).check(force=True)
    assert data(page) == call()


def test_slices_that_do_not_add_up_are_said_to(page: Tab) -> None:
    finding = call(agrees=False, agreement={"value": 1.4, "low": 1.3, "high": 1.5, "samples": 15})
    page.open(f"/lab/dispatcher?finding={keep(page, 'operator', finding)}", ".scrubber")
    assert "more than 15 % off" in page.text(".note.warn")


INTERVAL = {"value": 1e-3, "low": 0.9e-3, "high": 1.1e-3, "samples": 60}
ENDLESS = {"value": 1e-3, "low": None, "high": None, "samples": 5}


def block(name: str, kind: str, lane: str, row: int, depth: int, begin: float, duration: float, **more: Any) -> Finding:
    fixed = {"name": name, "kind": kind, "lane": lane, "row": row, "depth": depth, "launched_by": None}
    return {**fixed, "begin_us": begin, "duration_us": duration, **more}


GPU_TRACK: Finding = {
    "mode": "compiled",
    "effective": "compiled",
    "reason": None,
    "wall": INTERVAL,
    "tax": None,
    "no_tax": "the profiler lost kernels",
    "profiled_seconds": 0.002,
    "stretch": 2.0,
    "operators": 3,
    "kernels": 2,
    "launches": 2,
    "kernel_seconds": None,
    "blocks": [
        block("step", "mark", "host", 1, 0, 0, 1000),
        block("graph", "compiled", "host", 1, 1, 100, 500),
        block("cudaLaunchKernel", "launch", "host", 1, 2, 200, 20),
        block("triton_fused", "kernel", "device", 7, 0, 400, 1600, launched_by=2),
    ],
}


def gpu_timeline() -> Finding:
    second = {**GPU_TRACK, "mode": "eager", "wall": ENDLESS, "blocks": GPU_TRACK["blocks"][:1]}
    fixed = {"device": "cuda", "batch_bucket": 4, "phase": "decode", "files": ["timeline.trace.json.gz"]}
    return {**fixed, "tracks": [GPU_TRACK, second], "speedup": INTERVAL}


def test_a_gpus_streams_have_lanes_and_what_is_unknown_says_why(page: Tab) -> None:
    page.open(f"/lab/timeline?finding={keep(page, 'timeline', gpu_timeline())}", ".drawing svg")
    assert page.page.locator(".drawing .head").all_text_contents() == [
        "compiled · host",
        "compiled · device, stream 7",
        "eager · host",
    ]
    cells = row(page, "Both steps")
    assert cells["tax"] == "not measured: the profiler lost kernels"
    assert (cells["launches"], cells["kernels"]) == ("2", "2")
    assert "no interval, n = 5" in row(page, "Both steps", 1)["wall"]
    assert "Fused against unfused" in page.text('section[aria-label="speed-up"]')
    legend = page.page.locator(".legend li").all_inner_texts()
    assert legend == ["the step", "compiled code", "launch call", "kernel"]
    assert the_answer(page) == "A tax has to be known for that."
    trace = page.page.get_by_role("link", name="Save the trace for Perfetto")
    assert trace.get_attribute("href") == "/v1/studies/timeline-1/files/timeline.trace.json.gz"


def test_a_probe_without_a_difference_says_so_and_its_counter_answers_the_question(page: Tab) -> None:
    answer(page, "**/v1/probes/sync-point", PROBE)
    page.open("/lab/probes?probe=sync-point", ".study")
    assert the_answer(page) == "Run the probe."
    page.page.get_by_role("button", name="Run sync-point").click()
    assert "No detectable difference in time" in page.text(".verdict")
    assert "no interval, n = 5" in page.text('[data-side="with"]')
    assert 'The counter "sync points" moves from 0 to 6, by 6' in page.page.locator(".question details p").inner_text()
    assert "Add .item() to the loop" in page.text(".question")


def test_a_probe_that_is_new_to_the_page_is_shown_all_the_same(page: Tab) -> None:
    answer(page, "**/v1/probes", {"probes": [{"name": "fragmentation", "teaches": "small holes add up"}]})
    short = {key: PROBE[key] for key in ("without", "with", "counter", "blame", "cure")} | {"name": "fragmentation"}
    answer(page, "**/v1/probes/fragmentation", short)
    page.open("/lab/probes", ".study")
    page.page.get_by_role("button", name="Run fragmentation").click()
    assert quantity(page.text('[data-side="with"]')) == pytest.approx(0.002)
    assert page.page.locator(".verdict").count() == 0


def test_a_study_is_cancelled_by_a_button_and_by_leaving_the_view(page: Tab) -> None:
    page.page.route("**/v1/studies/*", lambda route: None)  # no answer ever comes
    page.open("/lab/tape", ".study")
    page.page.locator("button.primary").click()
    with page.page.expect_event("requestfailed") as given_up:
        page.page.get_by_role("button", name="Cancel").click()
    assert given_up.value.url.endswith("/tape")
    page.page.wait_for_selector(".empty")
    page.page.locator("button.primary").click()
    page.page.wait_for_selector(".loading")
    with page.page.expect_event("requestfailed") as given_up:
        page.page.get_by_role("link", name="Budget").click()
    assert given_up.value.url.endswith("/tape")


def test_progress_is_shown_as_it_comes_and_hanging_up_ends_the_study(browser: Browser, tmp_path: Path) -> None:
    """By an anatomy process that reports what it does, and then holds."""
    (tmp_path / "command").write_text("hold")
    with running(anatomy=tmp_path) as held:
        held.await_ready()
        with tab(browser, held.url) as page:
            page.open("/lab/timeline", ".study")
            page.page.locator("button.primary").click()
            page.page.wait_for_selector(".loading:has-text('measuring nothing')")
            assert held.http.get("/health/live").json()["engine_paused"]
            page.page.get_by_role("button", name="Cancel").click()
            until(lambda: not held.http.get("/health/live").json()["engine_paused"], "the end of the pause")
