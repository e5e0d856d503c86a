"""A real Chromium for tests: its pages, what went wrong on them, and what axe finds."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

AXE = Path(__file__).parent / "axe" / "axe.min.js"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
WIDE, NARROW = (1440, 900), (390, 844)
PATIENCE_MILLISECONDS = 120_000

VIOLATIONS = """async () => (await axe.run(document, {resultTypes: ["violations"]})).violations.flatMap(
  (rule) => rule.nodes.map((node) => `${rule.id}: ${node.target.join(" ")}: ${node.failureSummary}`))"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """The system's Chromium; skips the test where there is none, unless REQUIRE_ALL is set."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        assert not os.environ.get("REQUIRE_ALL"), "chromium is missing: install it"
        pytest.skip("no chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """One page, and its `problems`: errors of the console and of scripts, and requests to anybody else."""

    def __init__(self, page: Page, url: str) -> None:
        self.page, self.url = page, url
        self.problems: list[str] = []
        page.set_default_timeout(PATIENCE_MILLISECONDS)
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", lambda request: self._on_request(request.url))

    def open(self, path: str, ready: str = "main h1") -> None:
        """Open a path of the service, and wait for the selector `ready`."""
        self.page.goto(self.url + path)
        self.page.wait_for_selector(ready)

    def text(self, selector: str) -> str:
        """What stands in an element, once it is there."""
        return self.page.locator(selector).inner_text()

    def value(self, selector: str, attribute: str) -> str:
        """An attribute of an element, once it is there."""
        found = self.page.locator(selector).get_attribute(attribute)
        assert found is not None, f"{selector} has no {attribute}"
        return found

    def expected(self, text: str) -> None:
        """Take problems that contain `text` as what the test is about; there must be one."""
        assert any(text in problem for problem in self.problems), self.problems
        self.problems[:] = [problem for problem in self.problems if text not in problem]

    def violations(self) -> list[str]:
        """What axe objects to on the page as it is."""
        self.page.evaluate("() => {" + AXE.read_text(encoding="utf-8") + "}")
        found: list[str] = self.page.evaluate(VIOLATIONS)
        return found

    def reach(self) -> int:
        """How wide the page's content is, in pixels."""
        reach: int = self.page.evaluate("document.documentElement.scrollWidth")
        return reach

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def _on_request(self, url: str) -> None:
        if not url.startswith((self.url, "data:", "blob:")):
            self.problems.append(f"a request to {url}")


@contextmanager
def tab(
    browser: Browser, url: str, size: tuple[int, int] = WIDE, scheme: Any = "light", **options: Any
) -> Iterator[Tab]:
    """A page of its own; at the end it must have no problems."""
    viewport = {"width": size[0], "height": size[1]}
    context = browser.new_context(viewport=viewport, color_scheme=scheme, **options)  # type: ignore[arg-type]
    try:
        opened = Tab(context.new_page(), url)
        yield opened
        assert opened.problems == []
    finally:
        context.close()
