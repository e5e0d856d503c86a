"""Live: what the page shows is what /metrics says."""

from __future__ import annotations

import httpx
import pytest
from playwright.sync_api import Browser
from prometheus_client.parser import text_string_to_metric_families

from loadtests.report.formatting import whole
from tests.support.browser import Tab, tab
from tests.support.serving import Front, until

pytestmark = pytest.mark.browser

BODY = {"prompts": ["import os"], "max_new_tokens": 4}


def sum_of(http: httpx.Client, name: str, **labels: str) -> float:
    """The sum of a metric's samples under these labels."""
    families = text_string_to_metric_families(http.get("/metrics").text)
    found = [s for family in families for s in family.samples if s.name == f"launchbound_{name}"]
    return sum(s.value for s in found if labels.items() <= s.labels.items())


def cell(opened: Tab, mode: str, column: str) -> str:
    row = opened.page.locator(f"tr:has(td[data-column=mode]:text-is('{mode}'))")
    return row.locator(f"[data-column={column}]").inner_text()


def test_the_figures_are_the_metrics(lab: Tab, http: httpx.Client) -> None:
    lab.open("/lab/live", "table tbody tr")
    for _ in range(5):
        assert http.post("/v1/modes/eager/generate", json=BODY).status_code == 200
    counted = whole(sum_of(http, "requests_total", mode="eager"))
    until(lambda: cell(lab, "eager", "requests") == counted, "the page to have read the metrics")
    assert lab.text("[data-figure=engine] .figure") == "up"
    assert lab.text("[data-figure='waiting'] .figure") == "0"
    for mode in ("eager", "inference_mode"):
        assert cell(lab, mode, "state") == "ready"
    share = sum_of(http, "device_bound_index", mode="eager", batch="1")
    until(lambda: f"1: {share:.0%}".replace("%", " %") in cell(lab, "eager", "share"), "the newest share")
    for column in ("p50", "p95"):
        # Which bucket of the service's histogram the quantile lies in is the arithmetic of test_parts.
        assert cell(lab, "eager", f"{column}_seconds").endswith("ms")
    assert cell(lab, "eager", "requests_per_second") != "–"
    assert lab.violations() == []


def test_a_mode_without_requests_has_no_quantile_and_none_is_0(browser: Browser, front: Front) -> None:
    with tab(browser, front.url) as opened:
        opened.open("/lab/live", "table tbody tr")
        assert cell(opened, "compiled", "p50_seconds") == "–"
        assert cell(opened, "compiled", "share").startswith("1: 40 %, headroom 2.50× · ")
        assert "No request has ended while this page looked" in opened.text("main")


def test_a_hidden_page_reads_nothing(browser: Browser, front: Front) -> None:
    """Time is the page's own here, as is whether it is hidden: a headless browser never hides one."""
    with tab(browser, front.url) as opened:
        opened.page.clock.install()
        opened.open("/lab/live", "table tbody tr")
        opened.page.evaluate("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
        scrapes: list[str] = []
        opened.page.on("request", lambda request: scrapes.append(request.url))
        opened.page.clock.run_for(20_000)
        assert scrapes == []
        opened.page.evaluate("delete document.hidden")
        with opened.page.expect_request("**/metrics"):
            opened.page.clock.run_for(2_000)
