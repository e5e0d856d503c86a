"""Dispatcher: one call slice by slice, under its switches; and a whole step as a list."""

from __future__ import annotations

import pytest

from tests.front.lab.study_pages import (
    Kept,
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


@pytest.fixture
def step(lab_url: str) -> Kept:
    return real(lab_url, "operators")


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
            assert one["method"] in said
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


def test_a_step_is_listed_with_its_keys_and_its_copies_are_marked(lab: Tab, step: Kept) -> None:
    identity, finding = step
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
