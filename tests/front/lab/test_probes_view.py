"""Probes: those that the service lists, each with the numbers of its answer."""

from __future__ import annotations

import re

import pytest
from httpx import Client

from tests.front.lab.study_pages import PROBE, answer, data, near, quantity, the_answer
from tests.support.browser import Tab

pytestmark = pytest.mark.browser


def test_a_probe_runs_and_its_numbers_are_the_answers(lab: Tab) -> None:
    lab.open("/lab/probes?probe=allocator-churn", ".study")
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


def test_the_probes_to_choose_are_those_that_the_service_lists(lab: Tab, http: Client) -> None:
    lab.open("/lab/probes", ".study")
    names = lab.page.locator(".choice .options label").all_inner_texts()
    assert names == [probe["name"] for probe in http.get("/v1/probes").json()["probes"]]


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


def test_a_probe_that_is_new_to_the_page_is_shown_all_the_same(fake_lab: Tab) -> None:
    answer(fake_lab, "**/v1/probes", {"probes": [{"name": "fragmentation", "teaches": "small holes add up"}]})
    short = {key: PROBE[key] for key in ("without", "with", "counter", "blame", "cure")} | {
        "name": "fragmentation"
    }
    answer(fake_lab, "**/v1/probes/fragmentation", short)
    fake_lab.open("/lab/probes", ".study")
    fake_lab.page.get_by_role("button", name="Run fragmentation").click()
    assert quantity(fake_lab.text('[data-side="with"]')) == pytest.approx(0.002)
    assert fake_lab.page.locator(".verdict").count() == 0
