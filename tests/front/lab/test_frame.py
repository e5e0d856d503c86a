"""Every view as it opens and with its findings: states, light and dark, by keyboard, narrow, with a key."""

from __future__ import annotations

from pathlib import Path

import pytest
from httpx import Client
from playwright.sync_api import Browser

from service.front.routes.pages import VIEWS
from tests.front.lab.study_pages import PROBE, answer, call, data, finished, keep, real, rows, stream
from tests.support.browser import NARROW, WIDE, Tab, tab
from tests.support.serving import running, until

pytestmark = pytest.mark.browser


STUDIES = {"dispatcher": "operator", "timeline": "timeline", "tape": "tape", "budget": "budget"}
"""The study behind the first button of each view."""

SETTLED = "main h1 ~ *:not(.sentence):not([role=status])"
"""What a view draws below its sentence, once it need not wait."""


CONTROLS = (
    "a[href], button:not(:disabled), textarea, select, summary, [tabindex='0'],"
    " input:not(:disabled):not([type=radio]), input[type=radio]:checked"
)
"""What can be reached. A group of radio buttons is one stop, at its choice."""

FOUND = "[...document.querySelectorAll(controls)].filter((one) => one.checkVisibility())"
FOCUSED = f"""(controls) => {{ const at = document.activeElement;
  const drawn = at.matches("input[type=radio]") ? at.nextElementSibling : at;
  return [{FOUND}.indexOf(at), getComputedStyle(drawn).outlineStyle]; }}"""


def check(page: Tab) -> None:
    """Nothing that axe objects to, light and wide, dark and narrow, and no scrolling sideways; every control
    is reached by the tab key and shows that it is.
    """
    for size, scheme in ((NARROW, "dark"), (WIDE, "light")):
        page.page.set_viewport_size({"width": size[0], "height": size[1]})
        page.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        assert page.violations() == []
        assert page.reach() <= size[0]
    page.page.evaluate("() => document.activeElement.blur()")
    count = page.page.evaluate(f"(controls) => {FOUND}.length", CONTROLS)
    assert count > len(VIEWS)
    reached: list[tuple[int, str]] = []
    for _ in range(count + 2):  # the page itself is a stop, between the last control and the first
        page.page.keyboard.press("Tab")
        reached.append(tuple(page.page.evaluate(FOCUSED, CONTROLS)))
    places = [place for place, _ in reached if place >= 0][:count]
    first = places.index(0)
    assert [*places[first:], *places[:first]] == list(range(count))
    assert {outline for place, outline in reached if place >= 0} == {"solid"}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_has_a_title_one_sentence_and_is_fit_for_everybody(lab: Tab, name: str) -> None:
    if name in STUDIES:
        answer(lab, "**/v1/studies", {"studies": []})
    lab.open(f"/lab/{name}", SETTLED)
    sentence = lab.text(".sentence")
    assert sentence.endswith(".")
    assert sentence.count(". ") == 0
    heading = lab.text("h1")
    assert lab.page.title() == f"{heading} · launchbound"
    assert lab.text("nav [aria-current=page]") == heading
    if name in STUDIES:
        assert "yet" in lab.page.locator(".empty").first.inner_text()
        assert lab.page.locator("button.primary").first.is_enabled()
    check(lab)


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


def shown(page: Tab, name: str, url: str) -> None:
    """`page` at a study's view with all that it can show, its question answered."""
    if name == "dispatcher":
        keep(page, "operator", call())
    if name == "probes":
        answer(page, "**/v1/probes/sync-point", PROBE)
    others = {"dispatcher": "finding=operator-1", "probes": "probe=sync-point"}
    asked = others[name] if name in others else f"finding={real(url, name)[0]}"
    page.open(f"/lab/{name}?{asked}", "button.primary")
    if name == "probes":
        page.page.locator("button.primary").click()
        page.page.wait_for_selector(".probe")
    page.page.locator(".question summary").first.click()


@pytest.mark.parametrize("name", [*STUDIES, "probes"])
def test_a_view_with_its_finding_is_fit_for_everybody(lab: Tab, lab_url: str, name: str) -> None:
    shown(lab, name, lab_url)
    check(lab)


def test_during_a_sweep_a_view_says_that_it_waits_and_for_how_long(fake_lab: Tab) -> None:
    message = "a sweep is in progress, which a study would disturb: wait until it has ended"
    problem = {"error": {"type": "run_in_progress", "message": message, "param": None}}
    for name in (*STUDIES, "probes"):
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


def test_a_study_is_cancelled_by_leaving_the_view(fake_lab: Tab) -> None:
    fake_lab.page.route("**/v1/studies/*", lambda route: None)  # no answer ever comes
    fake_lab.open("/lab/tape", ".study")
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


def test_the_documentation_draws_the_document_and_calls_nobody_else(fake_lab: Tab) -> None:
    fake_lab.open("/docs", ".opblock-summary-path")
    assert fake_lab.page.locator(".opblock-summary-path").count() >= 15
