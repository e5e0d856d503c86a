"""The lab's pictures in docs/lab, of a real service: `python -m tests.support.lab_pictures [--modes …]`.

Each view is used as by a person, then taken whole at 1440 and at 390 pixels: `docs/lab/<view>-<width>.png`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
from playwright.sync_api import Page

from service.front.launch import launched
from service.front.routes.pages import VIEWS
from tests.support.browser import NARROW, WIDE, chromium, tab
from tests.support.serving import until

ROOT = Path(__file__).parents[2]
OUT = ROOT / "docs" / "lab"
START_SECONDS = 900.0
STUDY_MILLISECONDS = 300_000


def _play(page: Page) -> None:
    page.locator("main form button").click()
    page.wait_for_selector("[data-total]")


def _compare(page: Page) -> None:
    page.locator("text=/^Compare \\d/").click()
    page.wait_for_selector("[data-mode]")
    page.locator("text=Measure every batch").click()
    page.wait_for_function("() => document.querySelectorAll('table tbody tr').length >= 3")
    page.wait_for_function("() => !document.querySelector('[role=status]')")


def _live(page: Page) -> None:
    page.evaluate(
        """async () => { const body = JSON.stringify({ prompts: ["import os"], max_new_tokens: 16 });
          const sent = { method: "POST", headers: { "Content-Type": "application/json" }, body };
          const modes = Array(40).fill(["eager", "inference_mode"]).flat();
          for (const mode of modes) await fetch(`/v1/modes/${mode}/generate`, sent); }"""
    )
    page.wait_for_selector("svg[role=img] polyline")


def _runs(page: Page) -> None:
    page.wait_for_selector("table tbody tr")


def _study(*shown: str) -> Callable[[Page], None]:
    """Press the buttons of a view's studies one after another; each of `shown` is what comes of one."""

    def use(page: Page) -> None:
        for place, selector in enumerate(shown):
            page.locator("button.primary").nth(place).click()
            page.wait_for_selector(selector, timeout=STUDY_MILLISECONDS)

    return use


USED: Mapping[str, Callable[[Page], None]] = {
    "play": _play,
    "compare": _compare,
    "dispatcher": _study(".scrubber", '[aria-label="sync points"]'),
    "timeline": _study(".drawing svg"),
    "tape": _study(".tape svg"),
    "budget": _study(".whatif"),
    "probes": _study(".probe"),
    "live": _live,
    "runs": _runs,
}
"""What is done in a view before its picture; another view is taken as it opens."""


@contextmanager
def _service(modes: str, results: Path) -> Iterator[str]:
    """A warm service on a free port."""
    with TemporaryDirectory(prefix="lab-pictures-") as folder:
        log = Path(folder) / "log"
        environment = {"LAUNCHBOUND_RESULTS_FOLDER": str(results)}
        with launched([f"--modes={modes}"], log, environment) as url, httpx.Client(base_url=url) as http:
            until(lambda: (http.get("/v1/modes").json()["engine"] or {}).get("warm"), "warmth", START_SECONDS)
            yield url


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.lab_pictures", description=__doc__)
    parser.add_argument("--modes", default="eager,no_grad,inference_mode", help="served modes, with commas")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks", help="the results folder shown")
    parser.add_argument("--views", default=",".join(VIEWS), help="views to take, with commas")
    chosen = parser.parse_args(arguments)
    OUT.mkdir(parents=True, exist_ok=True)
    with _service(chosen.modes, chosen.results.resolve()) as url, chromium() as browser:
        for view in chosen.views.split(","):
            for size in (WIDE, NARROW):
                with tab(browser, url, size) as opened:
                    opened.open(f"/lab/{view}", "main h1 ~ *:not(.sentence)")
                    USED.get(view, lambda _: None)(opened.page)
                    path = OUT / f"{view}-{size[0]}.png"
                    opened.page.screenshot(path=path, full_page=True)
                    print(path)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
