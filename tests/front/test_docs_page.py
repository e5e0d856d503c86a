"""`/docs` in a browser: the document is drawn by this service's own scripts, within the page's policy."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.support.serving import Front


@pytest.mark.browser
def test_the_page_draws_the_document_and_calls_nobody_else(front: Front) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        assert not os.environ.get("REQUIRE_ALL"), "chromium is missing: install it"
        pytest.skip("no chromium")
    from playwright.sync_api import sync_playwright

    problems: list[str] = []
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        tab = browser.new_page()
        tab.on("console", lambda message: problems.append(message.text))
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("request", lambda request: problems.append(request.url))
        tab.goto(f"{front.url}/docs")
        tab.wait_for_selector(".opblock-summary-path")
        drawn = tab.locator(".opblock-summary-path").count()
        browser.close()
    assert [problem for problem in problems if not problem.startswith((front.url, "data:"))] == []
    assert drawn >= 15
