"""Budget: it starts at the measured values, says what the study says, and follows its sliders."""

from __future__ import annotations

import pytest

from tests.front.lab.study_pages import Kept, data, near, real, row
from tests.support.browser import Tab

pytestmark = pytest.mark.browser


@pytest.fixture
def budget(lab_url: str) -> Kept:
    return real(lab_url, "budget")


def test_a_budget_starts_at_the_measured_values_and_says_what_the_study_says(lab: Tab, budget: Kept) -> None:
    identity, finding = budget
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


def test_a_slider_of_the_budget_moves_by_keys_and_the_address_keeps_it(lab: Tab, budget: Kept) -> None:
    identity, finding = budget
    lab.open(f"/lab/budget?finding={identity}", ".whatif")
    own = finding["budget"]
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
