"""Every view as it opens and with its findings: states, light and dark, by keyboard, narrow, with a key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from httpx import Client
from playwright.sync_api import Browser

from service.front.routes.pages import VIEWS
from tests.front.lab.study_pages import PROBE, answer, call, data, finished, keep, real, rows, stream
from tests.support.browser import NARROW, WIDE, Tab, tab
from tests.support.serving import running, until

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


def test_a_view_is_chosen_by_keyboard_and_its_heading_gets_the_focus(lab: Tab) -> None:
    lab.open("/", SETTLED)
    lab.page.locator("nav a[href='/lab/live']").focus()
    lab.page.keyboard.press("Enter")
    lab.page.wait_for_selector("h1:has-text('Live')")
    assert lab.page.evaluate("location.pathname") == "/lab/live"
    assert lab.page.evaluate("document.activeElement.textContent") == "Live"
    lab.page.go_back()
    lab.page.wait_for_selector("h1:has-text('Play')")


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


STUDY_VIEWS = ("dispatcher", "timeline", "tape", "budget", "probes")

STOPS = "a[href], button:enabled, input:enabled, summary, [tabindex='0']"
TABBABLE = """(controls) => [...document.querySelectorAll(controls)].filter((each) =>
  each.offsetParent !== null && (each.type !== "radio" || each.checked)).length"""
"""How many stops the tab key has: a group of radio buttons is one, at its choice."""


@pytest.fixture
def addresses(lab_url: str) -> dict[str, str]:
    """Each view with something to show: of the real service, but for what would compile."""
    measured = ("timeline", "tape", "budget")
    real_ones = {name: f"/lab/{name}?finding={real(lab_url, name)[0]}" for name in measured}
    return {
        **real_ones,
        "dispatcher": "/lab/dispatcher?finding=operator-1",
        "probes": "/lab/probes?probe=sync-point",
    }


def opened(page: Tab, name: str, addresses: dict[str, str]) -> Tab:
    """`page` at a view with all that it can show, its question answered."""
    if name == "dispatcher":
        keep(page, "operator", call())
    if name == "probes":
        answer(page, "**/v1/probes/sync-point", PROBE)
    page.open(addresses[name], "button.primary")
    if name == "probes":
        page.page.locator("button.primary").click()
        page.page.wait_for_selector(".probe")
    page.page.locator(".question summary").first.click()
    return page


@pytest.mark.parametrize("name", STUDY_VIEWS)
@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "light"), (NARROW, "dark")], ids=["wide", "narrow"])
def test_axe_finds_nothing_and_the_page_does_not_scroll_sideways(
    browser: Browser, lab_url: str, addresses: dict[str, str], name: str, size: tuple[int, int], scheme: str
) -> None:
    with tab(browser, lab_url, size, scheme) as page:
        opened(page, name, addresses)
        assert page.violations() == []
        assert page.reach() <= size[0]


@pytest.mark.parametrize("name", STUDY_VIEWS)
def test_the_tab_key_reaches_every_control(lab: Tab, addresses: dict[str, str], name: str) -> None:
    opened(lab, name, addresses)
    lab.page.evaluate("() => document.activeElement.blur()")
    every = lab.page.evaluate(TABBABLE, STOPS)
    for _ in range(every + 5):
        lab.page.keyboard.press("Tab")
        lab.page.evaluate("() => (document.activeElement.dataset.walked = 'yes')")
    assert lab.page.locator("[data-walked]:not(body)").count() == every


STUDIES = {"dispatcher": "operator", "timeline": "timeline", "tape": "tape", "budget": "budget"}
"""The study behind the first button of each view."""


@pytest.mark.parametrize("name", STUDIES)
def test_before_anything_ran_a_view_says_what_to_do(fake_lab: Tab, name: str) -> None:
    fake_lab.open(f"/lab/{name}", ".study")
    assert "yet" in fake_lab.page.locator(".empty").first.inner_text()
    assert fake_lab.page.locator("button.primary").first.is_enabled()


@pytest.mark.parametrize("name", [*STUDIES, "probes"])
def test_during_a_sweep_a_view_says_that_it_waits_and_for_how_long(fake_lab: Tab, name: str) -> None:
    message = "a sweep is in progress, which a study would disturb: wait until it has ended"
    problem = {"error": {"type": "run_in_progress", "message": message, "param": None}}
    address = f"**/v1/studies/{STUDIES[name]}" if name in STUDIES else "**/v1/probes/*"
    answer(fake_lab, address, problem, 409, {"Retry-After": "17"})
    fake_lab.open(f"/lab/{name}", ".study")
    fake_lab.page.locator("button.primary").first.click()
    said = fake_lab.text('.failed[data-type="run_in_progress"]')
    assert "A sweep is measuring: the lab waits." in said
    assert message in said
    assert "Try again in 17 s." in said
    fake_lab.expected("409")


def test_a_study_that_fails_on_its_way_is_shown_and_can_be_tried_again(fake_lab: Tab) -> None:
    message = "the engine served meanwhile; try again"
    problem = {"error": {"type": "study_interrupted", "message": message, "param": None}}
    progress = {"message": "round 3", "done": 2, "total": 15}
    stream(fake_lab, "**/v1/studies/operator", ("progress", progress), ("error", problem))
    fake_lab.open("/lab/dispatcher", ".study")
    fake_lab.page.locator("button.primary").first.click()
    assert "the engine served meanwhile; try again" in fake_lab.text(".failed")
    fake_lab.page.unroute("**/v1/studies/operator")
    stream(fake_lab, "**/v1/studies/operator", finished("operator-2", call()))
    fake_lab.page.get_by_role("button", name="Try again").click()
    fake_lab.page.wait_for_selector(".scrubber")
    assert fake_lab.page.locator(".failed").count() == 0


def test_a_link_to_a_finding_that_is_gone_says_so_and_leaves_the_button(fake_lab: Tab) -> None:
    answer(fake_lab, "**/v1/studies", {"studies": []})
    fake_lab.open("/lab/timeline?finding=timeline-7", ".failed")
    assert "the finding timeline-7 is not kept any more: measure it again" in fake_lab.text(".failed")
    assert fake_lab.page.get_by_role("button", name="Draw both steps").is_enabled()


def test_a_study_is_cancelled_by_a_button_and_by_leaving_the_view(fake_lab: Tab) -> None:
    fake_lab.page.route("**/v1/studies/*", lambda route: None)  # no answer ever comes
    fake_lab.open("/lab/tape", ".study")
    fake_lab.page.locator("button.primary").click()
    with fake_lab.page.expect_event("requestfailed") as given_up:
        fake_lab.page.get_by_role("button", name="Cancel").click()
    assert given_up.value.url.endswith("/tape")
    fake_lab.page.wait_for_selector(".empty")
    fake_lab.page.locator("button.primary").click()
    fake_lab.page.wait_for_selector(".loading")
    with fake_lab.page.expect_event("requestfailed") as given_up:
        fake_lab.page.get_by_role("link", name="Budget").click()
    assert given_up.value.url.endswith("/tape")


def test_progress_is_shown_as_it_comes_and_hanging_up_ends_the_study(
    browser: Browser, tmp_path: Path
) -> None:
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


def test_a_study_runs_from_the_keyboard_with_progress_and_its_finding_has_an_address(
    lab: Tab, http: Client
) -> None:
    lab.open("/lab/tape?expression=exp", ".study")
    assert "No tape has been recorded yet" in lab.text(".empty")
    button = lab.page.get_by_role("button", name="Record the tape")
    button.focus()
    button.press("Enter")
    lab.page.wait_for_selector(".tape svg", timeout=100_000)
    identity = lab.value("[data-id]", "data-id")
    assert f"finding={identity}" in lab.page.url
    assert data(lab) == http.get(f"/v1/studies/{identity}").json()
    assert rows(lab, "Forward, in order") == 1
