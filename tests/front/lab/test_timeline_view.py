"""Timeline: the steps, tax and speed-up of the finding, zoomed and walked by keys, buttons and pointer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.front.lab.study_pages import Finding, Kept, data, keep, near, real, row, the_answer
from tests.support.browser import Tab

pytestmark = pytest.mark.browser


@pytest.fixture
def timeline(lab_url: str) -> Kept:
    return real(lab_url, "timeline")


def test_a_timeline_shows_the_steps_their_tax_and_the_speedup_of_the_finding(
    lab: Tab, timeline: Kept
) -> None:
    identity, finding = timeline
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


def test_a_timeline_is_zoomed_and_walked_by_keys(lab: Tab, timeline: Kept) -> None:
    identity, finding = timeline
    lab.open(f"/lab/timeline?finding={identity}", ".drawing svg")
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


def test_dragging_over_a_stretch_zooms_into_it_and_a_press_picks_a_block(lab: Tab, timeline: Kept) -> None:
    identity, finding = timeline
    lab.open(f"/lab/timeline?finding={identity}", ".drawing svg")
    lab.page.locator(".drawing").scroll_into_view_if_needed()
    box = lab.page.locator(".drawing svg").bounding_box()
    assert box is not None
    mark = lab.page.locator(".block.mark").first.bounding_box()
    assert mark is not None
    lab.page.mouse.click(mark["x"] + 10, mark["y"] + 5)
    assert lab.text(".picked").startswith(finding["tracks"][0]["blocks"][0]["name"])
    lab.page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 4)
    lab.page.mouse.down()
    lab.page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 4)
    lab.page.mouse.up()
    end = max(one["profiled_seconds"] for one in finding["tracks"]) * 1e6
    assert float(lab.value(".drawing", "data-from")) == pytest.approx(end * 0.25, rel=0.02)
    assert float(lab.value(".drawing", "data-to")) == pytest.approx(end * 0.5, rel=0.02)


INTERVAL = {"value": 1e-3, "low": 0.9e-3, "high": 1.1e-3, "samples": 60}
ENDLESS = {"value": 1e-3, "low": None, "high": None, "samples": 5}


def block(
    name: str, kind: str, lane: str, row: int, depth: int, begin: float, duration: float, **more: Any
) -> Finding:
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
