"""Every view as it opens: without a fault, light and dark, by keyboard, at every width, and with a key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pytest
from playwright.sync_api import Browser

from service.front.routes.pages import VIEWS
from tests.support.browser import NARROW, WIDE, Tab, tab
from tests.support.serving import running

pytestmark = pytest.mark.browser

SETTLED = "main h1 ~ *:not(.sentence):not([role=status])"
"""What a view draws below its sentence, once it need not wait."""


@pytest.fixture(scope="module", params=VIEWS)
def view(request: pytest.FixtureRequest, browser: Browser, lab_url: str) -> Iterator[Tab]:
    """Each view, opened once for all tests of it; the walk by keyboard, which moves the focus, is last."""
    with tab(browser, lab_url) as opened:
        opened.open(f"/lab/{request.param}", SETTLED)
        yield opened


def test_a_view_opens_by_its_address_with_a_title_and_one_sentence(view: Tab) -> None:
    sentence = view.text(".sentence")
    assert sentence.endswith(".")
    assert sentence.count(". ") == 0
    heading = view.text("h1")
    assert view.page.title() == f"{heading} · launchbound"
    assert view.text("nav [aria-current=page]") == heading


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_a_view(view: Tab, scheme: Literal["light", "dark"]) -> None:
    view.page.emulate_media(color_scheme=scheme)
    assert view.violations() == []


def test_a_view_does_not_scroll_sideways_on_a_phone(view: Tab) -> None:
    view.page.set_viewport_size({"width": NARROW[0], "height": NARROW[1]})
    assert view.reach() <= NARROW[0]
    view.page.set_viewport_size({"width": WIDE[0], "height": WIDE[1]})


CONTROLS = (
    "a[href], button:not(:disabled), textarea, select, summary, [tabindex='0'],"
    " input:not(:disabled):not([type=radio]), input[type=radio]:checked"
)
"""What can be reached. A group of radio buttons is one stop, at its choice."""

FOUND = "[...document.querySelectorAll(controls)].filter((one) => one.checkVisibility())"
FOCUSED = f"""(controls) => {{ const at = document.activeElement;
  const drawn = at.matches("input[type=radio]") ? at.nextElementSibling : at;
  return [{FOUND}.indexOf(at), getComputedStyle(drawn).outlineStyle]; }}"""


def test_every_control_is_reached_by_tab_and_shows_that_it_is(view: Tab) -> None:
    count = view.page.evaluate(f"(controls) => {FOUND}.length", CONTROLS)
    assert count > len(VIEWS)
    reached: list[tuple[int, str]] = []
    for _ in range(count):
        view.page.keyboard.press("Tab")
        reached.append(tuple(view.page.evaluate(FOCUSED, CONTROLS)))
    assert [place for place, _ in reached] == list(range(count))
    assert {outline for _, outline in reached} == {"solid"}


def test_the_first_view_is_at_the_root(lab: Tab) -> None:
    lab.open("/", SETTLED)
    assert lab.value("nav [aria-current=page]", "href") == "/lab/play"


def test_a_view_is_chosen_by_keyboard_and_its_heading_gets_the_focus(lab: Tab) -> None:
    lab.open("/", SETTLED)
    lab.page.locator("nav a[href='/lab/live']").focus()
    lab.page.keyboard.press("Enter")
    lab.page.wait_for_selector("h1:has-text('Live')")
    assert lab.page.evaluate("location.pathname") == "/lab/live"
    assert lab.page.evaluate("document.activeElement.textContent") == "Live"
    lab.page.go_back()
    lab.page.wait_for_selector("h1:has-text('Play')")


def test_the_policy_keeps_a_script_within_the_page_from_running(lab: Tab) -> None:
    lab.open("/", SETTLED)
    lab.page.evaluate(
        """() => { const script = document.createElement("script"); script.textContent = "window.ran = true";
          document.body.append(script); }"""
    )
    assert lab.page.evaluate("window.ran") is None
    lab.expected("Content Security Policy")


def test_the_key_is_asked_for_once_and_kept_in_memory_alone(browser: Browser) -> None:
    with running({"api_key": "right"}) as locked:
        locked.http.headers["Authorization"] = "Bearer right"
        locked.await_ready()
        with tab(browser, locked.url) as opened:
            opened.open("/", "dialog[open]")
            assert opened.violations() == []
            for key in ("wrong", "right"):
                opened.page.locator("dialog input").fill(key)
                opened.page.keyboard.press("Enter")
                if key == "wrong":
                    opened.page.wait_for_selector("dialog p:has-text('the API key is wrong')")
            opened.page.wait_for_selector("form textarea")
            opened.page.locator("nav a[href='/lab/runs']").click()
            opened.page.wait_for_selector("h1:has-text('Runs') ~ .state")
            assert opened.page.locator("dialog[open]").count() == 0
            kept = opened.page.evaluate("[document.cookie, localStorage.length, sessionStorage.length]")
            assert kept == ["", 0, 0]
            opened.expected("401")


def test_a_service_that_does_not_answer_is_an_error_with_a_way_on(browser: Browser, lab_url: str) -> None:
    with tab(browser, lab_url) as opened:
        opened.page.route("**/v1/modes", lambda route: route.abort())
        opened.open("/", "main [role=alert]")
        assert "does not answer" in opened.text("main [role=alert]")
        opened.page.unroute("**/v1/modes")
        opened.page.locator("main [role=alert] button").click()
        opened.page.wait_for_selector("form textarea")
        opened.expected("ERR_FAILED")
