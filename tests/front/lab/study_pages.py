"""Pages of studies in tests: findings of the service, findings that a test brings, numbers read from text."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Route

from tests.support.browser import Tab

UNITS = {
    "s": 1.0, "ms": 1e-3, "µs": 1e-6, "bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "×": 1.0,
    "%": 0.01,
}  # fmt: skip
_QUANTITY = re.compile(rf"(-?[\d,.]+)\s*({'|'.join(UNITS)})(?![\w%])")

Finding = dict[str, Any]
Kept = tuple[str, Finding]
"""A finding and its id."""

EXAMPLE = Path(__file__).parents[2] / "anatomy" / "operator_call_finding.json"

ARGUMENTS: dict[str, dict[str, Any]] = {
    "timeline": {"mode": "eager", "against": "inference_mode"},
    "tape": {"expression": "linear-relu-sum", "mode": "eager"},
    "budget": {"modes": ["eager", "inference_mode"], "batch_sizes": [1], "mode": "eager", "rounds": 6},
    "operators": {"mode": "eager"},
}
"""Of the studies that tests run on the lab's service; none compiles."""

PROBE: Finding = {
    "name": "sync-point",
    "without": {"median_seconds": 0.001, "low": 0.0009, "high": 0.0011, "samples": 41},
    "with": {"median_seconds": 0.002, "low": None, "high": None, "samples": 5},
    "ratio": {"value": 1.004, "low": 0.99, "high": 1.01, "samples": 41},
    "verdict": "no detectable difference",
    "counter": {"name": "sync_points", "before": 0, "after": 6},
    "blame": "service/anatomy/probes/eager.py:31",
    "cure": "Leave the value on the device.",
    "teaches": "a wait",
    "notes": ["on a CPU it does not wait"],
    "device": "cpu",
    "batch_size": 1,
    "phase": "decode",
    "layers": 6,
}
"""An answer of a probe."""


def quantity(text: str) -> float:
    """The first number of `text` that has a unit, in seconds, bytes or as a share."""
    found = _QUANTITY.search(text)
    assert found is not None, f"no number with a unit in {text!r}"
    return float(found[1].replace(",", "")) * UNITS[found[2]]


def near(text: str, value: float) -> bool:
    """Whether three digits of `value` stand in `text`."""
    return quantity(text) == pytest.approx(value, rel=6e-3)


def call(**changes: Any) -> Finding:
    """The finding of one operator's call that the study's own tests describe, with `changes`."""
    found: Finding = json.loads(EXAMPLE.read_text()) | changes
    return found


def study(http: httpx.Client, name: str, **arguments: object) -> Kept:
    answer = http.post(f"/v1/studies/{name}", json=arguments, timeout=200.0)
    assert answer.status_code == 200, answer.text
    return answer.headers["location"].rpartition("/")[2], answer.json()


@cache
def real(url: str, name: str) -> Kept:
    """The finding of a study of the service at `url`, which is run once for all tests."""
    with httpx.Client(base_url=url) as http:
        return study(http, name, **ARGUMENTS[name])


def keep(tab: Tab, name: str, finding: Finding) -> str:
    """Have the page find `finding` among those that are kept; returns its id."""
    entry = {"id": f"{name}-1", "study": name, "arguments": {}, "created": "2026-01-01T00:00:00+00:00"}
    answer(tab, "**/v1/studies", {"studies": [entry]})
    answer(tab, f"**/v1/studies/{entry['id']}", finding)
    return str(entry["id"])


def answer(
    tab: Tab, address: str, body: object, status: int = 200, headers: dict[str, str] | None = None
) -> None:
    """Answer the page's requests to `address` in the service's place."""

    def fulfil(route: Route) -> None:
        text = json.dumps(body, ensure_ascii=False)
        route.fulfill(status=status, body=text, headers=headers, content_type="application/json")

    tab.page.route(address, fulfil)


def stream(tab: Tab, address: str, *events: tuple[str, object]) -> None:
    """Answer a POST to `address` with these server-sent events, in the service's place."""
    text = "".join(
        f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n" for name, data in events
    )
    tab.page.route(address, lambda route: route.fulfill(body=text, content_type="text/event-stream"))


def finished(identity: str, finding: Finding) -> tuple[str, object]:
    created = "2026-01-01T00:00:00+00:00"
    kept = {"id": identity, "study": "operator", "arguments": {}, "created": created, "finding": finding}
    return "finding", kept


def row(tab: Tab, caption: str, place: int = 0) -> dict[str, str]:
    cells = tab.page.get_by_role("region", name=caption).locator("tbody tr").nth(place).locator("td")
    found = cells.evaluate_all("cells => cells.map((cell) => [cell.dataset.column, cell.innerText])")
    return dict(found)


def rows(tab: Tab, caption: str) -> int:
    return tab.page.get_by_role("region", name=caption).locator("tbody tr").count()


def data(tab: Tab, place: int = 0) -> Any:
    tab.page.get_by_role("button", name="Show the data (JSON)").nth(place).click()
    return json.loads(tab.page.get_by_role("region", name="The view's data").first.inner_text())


def the_answer(tab: Tab, place: int = 0) -> str:
    question = tab.page.locator(".question").nth(place)
    question.locator("summary").click()
    return question.locator("details p").inner_text()
