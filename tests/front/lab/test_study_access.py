"""The views of studies for everybody: every control by keyboard, axe, light and dark, and a narrow screen."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser

from tests.front.lab.study_pages import PROBE, answer, call, keep, real
from tests.support.browser import NARROW, WIDE, Tab, tab

pytestmark = pytest.mark.browser

VIEWS = ("dispatcher", "timeline", "tape", "budget", "probes")

CONTROLS = "a[href], button:enabled, input:enabled, summary, [tabindex='0']"
TABBABLE = """(controls) => [...document.querySelectorAll(controls)].filter((each) =>
  each.offsetParent !== null && (each.type !== "radio" || each.checked)).length"""
"""How many stops the tab key has: a group of radio buttons is one, at its choice."""


@pytest.fixture
def addresses(lab_url: str) -> dict[str, str]:
    """Each view with something to show: of the real service, but for what would compile."""
    real_ones = {
        name: f"/lab/{name}?finding={real(lab_url, name)[0]}" for name in ("timeline", "tape", "budget")
    }
    return {
        **real_ones,
        "dispatcher": "/lab/dispatcher?finding=operator-1",
        "probes": "/lab/probes?probe=sync-point",
    }


def opened(page: Tab, view: str, addresses: dict[str, str]) -> Tab:
    """`page` at a view with all that it can show, its question answered."""
    if view == "dispatcher":
        keep(page, "operator", call())
    if view == "probes":
        answer(page, "**/v1/probes/sync-point", PROBE)
    page.open(addresses[view], "button.primary")
    if view == "probes":
        page.page.locator("button.primary").click()
        page.page.wait_for_selector(".probe")
    page.page.locator(".question summary").first.click()
    return page


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "light"), (NARROW, "dark")], ids=["wide", "narrow"])
def test_axe_finds_nothing_and_the_page_does_not_scroll_sideways(
    browser: Browser, lab_url: str, addresses: dict[str, str], view: str, size: tuple[int, int], scheme: str
) -> None:
    with tab(browser, lab_url, size, scheme) as page:
        opened(page, view, addresses)
        assert page.violations() == []
        assert page.reach() <= size[0]


@pytest.mark.parametrize("view", VIEWS)
def test_the_tab_key_reaches_every_control(lab: Tab, addresses: dict[str, str], view: str) -> None:
    opened(lab, view, addresses)
    lab.page.evaluate("() => document.activeElement.blur()")
    every = lab.page.evaluate(TABBABLE, CONTROLS)
    for _ in range(every + 5):
        lab.page.keyboard.press("Tab")
        lab.page.evaluate("() => (document.activeElement.dataset.walked = 'yes')")
    assert lab.page.locator("[data-walked]:not(body)").count() == every
