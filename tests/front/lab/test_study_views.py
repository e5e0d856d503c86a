"""Budget, dispatcher, timeline, tape and probes: what the pages show is what the findings say."""

from __future__ import annotations

import re
from typing import Any

import pytest
from httpx import Client

from tests.front.lab.study_pages import (
    PROBE,
    Finding,
    answer,
    call,
    data,
    finished,
    keep,
    near,
    quantity,
    real,
    row,
    rows,
    stream,
    the_answer,
)
from tests.support.browser import Tab

pytestmark = pytest.mark.browser


def test_a_budget_starts_at_what_the_study_says_and_a_slider_moves_by_keys_which_the_address_keeps(
    lab: Tab, lab_url: str
) -> None:
    identity, finding = real(lab_url, "budget")
    lab.open(f"/lab/budget?finding={identity}", ".whatif")
    own = finding["budget"]
    assert float(lab.value('[aria-label="Verdict"]', "data-share")) == pytest.approx(
        own["device_bound_index"]
    )
    point = finding["points"][0]
    low, high = (
        point["kernel_seconds"][end] / (point["kernel_seconds"][end] + point["dispatch_seconds"][other])
        for end, other in (("low", "high"), ("high", "low"))
    )
    said = f"kernel share {own['device_bound_index']:.0%} ({low:.0%} to {high:.0%})".replace("%", " %")
    assert lab.text('[aria-label="Verdict"] .figure') == said
    speedups = lab.page.locator("[data-speedup]")
    bought = [float(one) for one in speedups.evaluate_all("all => all.map((each) => each.dataset.speedup)")]
    # On a busy machine a part may be measured as nothing, and there is no ratio to it.
    known = [gain for gain in finding["gains"] if gain["dispatch_ratio"] and gain["kernel_ratio"]]
    assert len(known) == len(finding["gains"]) or own["kernel_microseconds"]["value"] <= 0
    dispatch, kernel = own["dispatch_microseconds"], own["kernel_microseconds"]["value"]
    ratios = [(gain["dispatch_ratio"]["value"], gain["kernel_ratio"]["value"]) for gain in known]
    assert bought == [
        pytest.approx(point["without_dispatch_speedup"]),
        *(pytest.approx((dispatch + kernel) / (dispatch * a + kernel * b)) for a, b in ratios),
    ]
    cells = row(lab, "Per decode step on cpu")
    assert near(cells["step"], point["step"]["value"])
    assert near(cells["dispatch"], point["dispatch_seconds"]["value"])
    assert data(lab) == finding
    slider = lab.page.get_by_role("slider", name="Operators per step")
    slider.focus()
    for _ in range(4):
        slider.press("ArrowRight")
    doubled = 2 * own["ops_per_step"]["value"]
    assert slider.get_attribute("aria-valuetext") == str(doubled)
    dispatch, kernel = 2 * own["dispatch_microseconds"], own["kernel_microseconds"]["value"]
    share = float(lab.value('[aria-label="Verdict"]', "data-share"))
    assert share == pytest.approx(kernel / (kernel + dispatch))
    assert "operators=4" in lab.page.url
    lab.open(lab.page.url.removeprefix(lab.url), ".whatif")
    assert float(lab.value('[aria-label="Verdict"]', "data-share")) == pytest.approx(share)
    lab.page.get_by_role("button", name="Back to this machine's values").click()
    assert float(lab.value('[aria-label="Verdict"]', "data-share")) == pytest.approx(
        own["device_bound_index"]
    )


def test_the_slider_scrubs_through_every_slice_with_its_time_and_the_sum_so_far(fake_lab: Tab) -> None:
    finding = call()
    fake_lab.open(f"/lab/dispatcher?finding={keep(fake_lab, 'operator', finding)}", ".scrubber")
    slider = fake_lab.page.get_by_role("slider", name="Slice")
    slider.focus()
    for place, one in enumerate(finding["slices"]):
        assert fake_lab.value(".one", "data-slice") == one["name"]
        assert (
            slider.get_attribute("aria-valuetext")
            == f"{place + 1} of {len(finding['slices'])}: {one['name']}"
        )
        said = fake_lab.text(".one")
        assert all(key in said for key in one["keys"])
        if one["microseconds"] is None:
            assert f"not measured: {one['why_not']}" in said
        else:
            assert quantity(said) == pytest.approx(one["microseconds"]["value"] * 1e-6, rel=6e-3)
            assert one["experiment"] in said
        assert ("not in the sum" in said) == (one["microseconds"] is not None and not one["in_sum"])
        if one["running_microseconds"]:
            so_far = quantity(said.partition("So far")[2])
            assert so_far == pytest.approx(one["running_microseconds"]["value"] * 1e-6, rel=6e-3)
        slider.press("ArrowRight")
    assert rows(fake_lab, "Slices, from") == len(finding["slices"])
    assert rows(fake_lab, "Dispatch keys of") == len(finding["table"])
    assert data(fake_lab) == finding


def test_a_switch_shows_its_own_measurement_or_says_that_there_is_none(fake_lab: Tab) -> None:
    fake_lab.open(f"/lab/dispatcher?finding={keep(fake_lab, 'operator', call())}", ".scrubber")
    fake_lab.page.get_by_role("radio", name="inference mode").check(force=True)
    assert "has not been measured with these switches" in fake_lab.text(".empty >> nth=0")
    whole = {"value": 0.9, "low": 0.8, "high": 1.0, "samples": 15}
    without = call(grad="inference_mode", whole_microseconds=whole, key_set=["CPU"])
    stream(fake_lab, "**/v1/studies/operator", finished("operator-2", without))
    fake_lab.page.get_by_role("button", name="Measure this call").click()
    fake_lab.page.wait_for_selector(".scrubber")
    assert rows(fake_lab, "Measured on this page") == 2
    assert quantity(row(fake_lab, "Measured on this page", 1)["whole"]) == pytest.approx(0.9e-6)
    said = the_answer(fake_lab)
    autograd = next(one for one in call()["slices"] if one["name"] == "autograd")["microseconds"]["value"]
    assert near(said, autograd * 1e-6)
    assert f"{100 * autograd / call()['whole_microseconds']['value']:.0f} % of the call" in said
    assert said.endswith("its keys there: CPU.")
    fake_lab.page.get_by_role("radio", name="on", exact=True).check(force=True)
    assert data(fake_lab) == call()


def test_slices_that_do_not_add_up_are_said_to(fake_lab: Tab) -> None:
    finding = call(agrees=False, agreement={"value": 1.4, "low": 1.3, "high": 1.5, "samples": 15})
    fake_lab.open(f"/lab/dispatcher?finding={keep(fake_lab, 'operator', finding)}", ".scrubber")
    assert "more than 15 % off" in fake_lab.text(".note.warn")


def test_a_step_is_listed_with_its_keys_and_its_copies_are_marked(lab: Tab, lab_url: str) -> None:
    identity, finding = real(lab_url, "operators")
    lab.open(f"/lab/dispatcher?step={identity}", "td")
    caption = "The step's calls in order"
    assert rows(lab, caption) == len(finding["operators"])
    for place in (0, len(finding["operators"]) // 2, len(finding["operators"]) - 1):
        operator = finding["operators"][place]
        cells = row(lab, caption, place)
        assert cells["name"].partition(".")[0] == operator["name"].removeprefix("aten::")
        assert cells["keys"].split() == operator["keys"]
        assert near(cells["host"] + " µs", operator["host_seconds"])
        assert near(cells["sum"] + " µs", operator["cumulative_seconds"])
    marked = {one["operator"] for one in finding["copies"]}
    lab.page.get_by_role("radio", name=f"copies ({len(marked)})").check(force=True)
    assert rows(lab, caption) == len(marked) > 0
    assert lab.page.locator(".mark.copy").count() == len(finding["copies"])
    assert f"{len(finding['syncs'])}\n" in lab.text('[aria-label="sync points"]')
    assert data(lab) == finding


def test_a_tape_shows_the_findings_operators_nodes_and_bytes_and_none_with_grad_mode_off(
    lab: Tab, lab_url: str
) -> None:
    identity, finding = real(lab_url, "tape")
    lab.open(f"/lab/tape?finding={identity}", ".tape svg")
    assert rows(lab, "Forward, in order") == len(finding["forward"])
    assert rows(lab, "Backward, in the order") == len(finding["backward"])
    for place, node in enumerate(finding["backward"]):
        cells = row(lab, "Backward, in the order", place)
        assert cells["name"] == node["name"]
        assert near(cells["bytes"], sum(one["tensor_bytes"] for one in node["saved"]))
    saved = sum(len(node["saved"]) for node in finding["backward"])
    assert lab.page.locator(".tape .saved").count() == saved == finding["held"]["tensors"]
    drawn = lab.page.locator(".tape .box.node").all_text_contents()
    assert all(any(f".grad of {leaf['name']}" in text for text in drawn) for leaf in finding["leaves"])
    assert near(lab.text('[data-figure="saved"]'), finding["held"]["storage_bytes"])
    assert near(lab.text('[data-figure="own"]'), finding["held"]["own_bytes"])
    assert data(lab) == finding

    def own(node: Finding) -> int:
        return sum(one["tensor_bytes"] for one in node["saved"] if one["kind"] == "intermediate")

    most = max(finding["backward"], key=own)
    said = the_answer(lab)
    assert said.startswith(f"{most['name']} (node {most['index']})")
    assert near(said, own(most))
    assert said.endswith("kept 0 bytes in 0 tensors.")
    for place, grad in enumerate(("no_grad", "inference_mode")):
        choice = lab.page.get_by_role("group", name="The same computation with")
        choice.get_by_role("radio", name=grad, exact=True).check(force=True)
        lab.page.wait_for_selector('.tape svg[data-nodes="0"]')
        assert lab.text('[data-figure="nodes"]').startswith("0\n")
        assert quantity(lab.text('[data-figure="saved"]')) == 0
        assert rows(lab, "Forward, in order") == len(finding["untaped"][place]["forward"]) > 0
        assert lab.page.get_by_role("region", name="Backward, in the order").count() == 0
        assert f"grad={grad}" in lab.page.url


def test_a_timeline_shows_the_steps_tax_and_speedup_of_the_finding_and_is_zoomed_and_walked_by_keys(
    lab: Tab, lab_url: str
) -> None:
    identity, finding = real(lab_url, "timeline")
    lab.open(f"/lab/timeline?finding={identity}", ".drawing svg")
    for place, track in enumerate(finding["tracks"]):
        cells = row(lab, "Both steps", place)
        assert near(cells["wall"], track["wall"]["value"])
        assert near(cells["tax"], track["tax"]["fraction"]["value"])
        assert (cells["mode"], cells["operators"]) == (track["mode"], str(track["operators"]))
        assert (cells["kernels"], cells["launches"]) == ("–", "–")
    assert near(lab.text('section[aria-label="speed-up"]'), finding["speedup"]["value"])
    assert lab.page.locator(".drawing rect.block").count() == sum(
        len(one["blocks"]) for one in finding["tracks"]
    )
    assert "Neither is fused" in lab.text('section[aria-label="speed-up"]')
    assert data(lab) == finding
    drawing = lab.page.locator(".drawing")

    def shown() -> tuple[float, float]:
        return float(lab.value(".drawing", "data-from")), float(lab.value(".drawing", "data-to"))

    whole = shown()
    assert whole == (0, pytest.approx(max(one["profiled_seconds"] for one in finding["tracks"]) * 1e6))
    drawing.focus()
    drawing.press("+")
    zoomed = shown()
    assert zoomed[1] - zoomed[0] == pytest.approx(whole[1] / 2)
    drawing.press("ArrowRight")
    assert shown()[0] > zoomed[0]
    drawing.press("Home")
    assert shown() == whole
    for place in range(3):
        drawing.press("n")
        assert lab.text(".picked").startswith(finding["tracks"][0]["blocks"][place]["name"])
    drawing.press("p")
    assert lab.text(".picked").startswith(finding["tracks"][0]["blocks"][1]["name"])
    assert lab.page.locator(".block.chosen").count() == 1


INTERVAL = {"value": 1e-3, "low": 0.9e-3, "high": 1.1e-3, "samples": 60}
ENDLESS = {"value": 1e-3, "low": None, "high": None, "samples": 5}


def block(
    name: str, kind: str, lane: str, row: int, depth: int, begin: float, duration: float, **more: Any
) -> Finding:
    fixed = {"name": name, "kind": kind, "lane": lane, "row": row, "depth": depth}
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
        block("triton_fused", "kernel", "device", 7, 0, 400, 1600),
    ],
}


def gpu_timeline() -> Finding:
    second = {**GPU_TRACK, "mode": "eager", "wall": ENDLESS, "blocks": GPU_TRACK["blocks"][:1]}
    fixed = {
        "device": "cuda",
        "batch_bucket": 4,
        "phase": "decode",
        "files": ["timeline.trace.json.gz"],
        "notes": [],
    }
    return {**fixed, "tracks": [GPU_TRACK, second], "speedup": INTERVAL}


def test_a_gpus_streams_have_lanes_and_what_is_unknown_says_why(fake_lab: Tab) -> None:
    fake_lab.open(f"/lab/timeline?finding={keep(fake_lab, 'timeline', gpu_timeline())}", ".drawing svg")
    assert fake_lab.page.locator(".drawing .head").all_text_contents() == [
        "compiled · host",
        "compiled · device, stream 7",
        "eager · host",
    ]
    cells = row(fake_lab, "Both steps")
    assert cells["tax"] == "not measured: the profiler lost kernels"
    assert (cells["launches"], cells["kernels"]) == ("2", "2")
    assert "no interval, n = 5" in row(fake_lab, "Both steps", 1)["wall"]
    assert "Fused against unfused" in fake_lab.text('section[aria-label="speed-up"]')
    legend = fake_lab.page.locator(".legend li").all_inner_texts()
    assert legend == ["the step", "compiled code", "launch call", "kernel"]
    assert the_answer(fake_lab) == "A tax has to be known for that."
    trace = fake_lab.page.get_by_role("link", name="Save the trace for Perfetto")
    assert trace.get_attribute("href") == "/v1/studies/timeline-1/files/timeline.trace.json.gz"


def test_a_probe_of_those_that_the_service_lists_runs_and_its_numbers_are_the_answers(
    lab: Tab, http: Client
) -> None:
    lab.open("/lab/probes?probe=allocator-churn", ".study")
    names = lab.page.locator(".choice .options label").all_inner_texts()
    assert names == [probe["name"] for probe in http.get("/v1/probes").json()["probes"]]
    with lab.page.expect_response("**/v1/probes/allocator-churn", timeout=100_000) as answered:
        lab.page.get_by_role("button", name="Run allocator-churn").press("Enter")
    found = answered.value.json()
    lab.page.wait_for_selector(".probe")
    for side in ("without", "with"):
        assert near(lab.text(f'[data-side="{side}"] .interval'), found[side]["median_seconds"])
    shown = re.search(r": ([\d,.]+) without, ([\d,.]+) with$", lab.text(".counter"))
    assert shown is not None
    for text, end in zip(shown.groups(), ("before", "after"), strict=True):
        assert float(text.replace(",", "")) == pytest.approx(found["counter"][end], rel=1e-3, abs=0.5)
    assert found["blame"] in lab.text(".probe")
    assert found["blame"] in the_answer(lab)
    assert data(lab) == found


def test_a_probe_without_a_difference_says_so_and_its_counter_answers_the_question(fake_lab: Tab) -> None:
    answer(fake_lab, "**/v1/probes/sync-point", PROBE)
    fake_lab.open("/lab/probes?probe=sync-point", ".study")
    assert the_answer(fake_lab) == "Run the probe."
    fake_lab.page.get_by_role("button", name="Run sync-point").click()
    assert "No detectable difference in time" in fake_lab.text(".verdict")
    assert "no interval, n = 5" in fake_lab.text('[data-side="with"]')
    assert (
        'The counter "sync points" moves from 0 to 6, by 6'
        in fake_lab.page.locator(".question details p").inner_text()
    )
    assert "Add .item() to the loop" in fake_lab.text(".question")
