"""What the views of studies show before, during and instead of a finding."""

from __future__ import annotations

from pathlib import Path

import pytest
from httpx import Client
from playwright.sync_api import Browser

from tests.front.lab.study_pages import answer, call, data, finished, keep, rows, stream
from tests.support.browser import Tab, tab
from tests.support.serving import running, until

pytestmark = pytest.mark.browser


STUDIES = {"dispatcher": "operator", "timeline": "timeline", "tape": "tape", "budget": "budget"}
"""The study behind the first button of each view."""


@pytest.mark.parametrize("view", STUDIES)
def test_before_anything_ran_a_view_says_what_to_do(fake_lab: Tab, view: str) -> None:
    fake_lab.open(f"/lab/{view}", ".study")
    assert "yet" in fake_lab.page.locator(".empty").first.inner_text()
    assert fake_lab.page.locator("button.primary").first.is_enabled()


@pytest.mark.parametrize("view", [*STUDIES, "probes"])
def test_during_a_sweep_a_view_says_that_it_waits_and_for_how_long(fake_lab: Tab, view: str) -> None:
    message = "a sweep is in progress, which a study would disturb: wait until it has ended"
    problem = {"error": {"type": "run_in_progress", "message": message, "param": None}}
    address = f"**/v1/studies/{STUDIES[view]}" if view in STUDIES else "**/v1/probes/*"
    answer(fake_lab, address, problem, 409, {"Retry-After": "17"})
    fake_lab.open(f"/lab/{view}", ".study")
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


def test_a_link_opens_no_finding_of_another_study(fake_lab: Tab) -> None:
    identity = keep(fake_lab, "tape", {})
    fake_lab.open(f"/lab/timeline?finding={identity}", ".failed")
    assert "is not kept any more" in fake_lab.text(".failed")


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
