"""Runs: the sweeps of the service's results folder, a report apart, and two compared."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.support.browser import Tab

pytestmark = pytest.mark.browser

CELL = "tr:has(b:text-is('{}')) [data-column={}]"


def test_sweeps_are_listed_as_the_service_describes_them(lab: Tab, http: httpx.Client) -> None:
    runs = http.get("/v1/runs").json()["runs"]
    lab.open("/lab/runs", "table tbody tr")
    rows = lab.page.locator("table tbody tr")
    assert [rows.nth(n).locator("b").inner_text() for n in range(rows.count())] == [
        run["name"] for run in runs
    ]
    before = next(run for run in runs if run["name"] == "before")
    assert lab.text(CELL.format("before", "headline")) == before["headline"]
    assert lab.text(CELL.format("before", "valid")) == ("passed" if before["valid"] else "failed")
    assert "no report yet" in lab.text(CELL.format("after", "headline"))


def test_a_report_opens_in_a_page_apart_and_draws_itself(lab: Tab) -> None:
    """Its scripts run, and within the sandbox: it has no origin and reaches nothing."""
    lab.open("/lab/runs", "table tbody tr")
    with lab.page.context.expect_page() as opened:
        lab.page.locator("a:has-text('open')").click()
    report = opened.value
    problems: list[str] = []
    report.on("pageerror", lambda error: problems.append(str(error)))
    report.wait_for_selector(".plot .main-svg")
    assert report.evaluate("self.origin") == "null"
    assert report.evaluate("fetch('/v1/modes').then(() => 'reached', () => 'kept out')") == "kept out"
    assert problems == []


def test_a_report_is_saved_as_the_file_that_it_is(lab: Tab, sweeps: Path) -> None:
    lab.open("/lab/runs", "table tbody tr")
    with lab.page.expect_download() as saved:
        lab.page.locator("[aria-label='Save the report of before']").click()
    assert saved.value.path().read_bytes() == (sweeps / "before" / "report.html").read_bytes()


def test_two_are_compared_and_the_words_are_the_verbs(lab: Tab) -> None:
    lab.open("/lab/runs?before=before&after=after", "table tbody tr")
    with lab.page.expect_response("**/v1/runs/compare") as answered:
        lab.page.locator("section button.primary").click()
    lab.page.wait_for_selector("[data-comparison]")
    document = answered.value.json()
    assert lab.text("[data-comparison] .figure") == document["headline"]
    rows = lab.page.locator("[data-comparison] tbody tr")
    assert rows.count() == len(document["cells"]) > 0
    for place, cell in enumerate(document["cells"]):
        assert rows.nth(place).locator("[data-column=word]").inner_text() == cell["word"] == "slower"
    assert lab.violations() == []


def test_unlike_or_equal_choices_are_refused_with_the_reason(lab: Tab) -> None:
    lab.open("/lab/runs?before=after&after=after", "table tbody tr")
    assert lab.page.locator("section button.primary").is_disabled()
    assert "Choose two sweeps" in lab.text("section[aria-labelledby=pair]")
