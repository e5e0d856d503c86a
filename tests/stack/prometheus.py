"""A client of Prometheus' HTTP API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True, slots=True)
class TimeSeries:
    """One series of a query's result: its labels, and (seconds since the epoch, value) in order of time."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running server and its HTTP API. A query that it refuses raises ValueError with its message."""

    url: str

    def query(self, expr: str, at: float | None = None) -> list[TimeSeries]:
        """`expr` at `at` (seconds since the epoch; None: now): one point per series."""
        when = {} if at is None else {"time": at}
        found = self._get("query", query=expr, **when)["data"]["result"]
        return [TimeSeries(one["metric"], (_point(one["value"]),)) for one in found]

    def query_range(self, expr: str, start: float, end: float, step_seconds: float) -> list[TimeSeries]:
        """`expr` over time, from `start` to `end` in seconds since the epoch."""
        found = self._get("query_range", query=expr, start=start, end=end, step=step_seconds)["data"]
        return [TimeSeries(one["metric"], tuple(map(_point, one["values"]))) for one in found["result"]]

    def exemplars(self, expr: str, start: float, end: float) -> list[tuple[dict[str, str], dict[str, Any]]]:
        """What the series in `expr` pointed to from `start` to `end`: a series' labels, and an exemplar."""
        found = self._get("query_exemplars", query=expr, start=start, end=end)["data"]
        return [(series["seriesLabels"], one) for series in found for one in series["exemplars"]]

    def health(self) -> dict[str, str]:
        """Scraped address "host:port" → "up" or the last error; undiscovered targets are missing."""
        targets = self._get("targets", state="active")["data"]["activeTargets"]
        return {
            one["discoveredLabels"]["__address__"]: "up"
            if one["health"] == "up"
            else one["lastError"] or "unknown"
            for one in targets
        }

    def rules(self) -> list[dict[str, Any]]:
        """All rules, each with `name`, `query`, `health` and `type` (recording or alerting)."""
        return [rule for group in self._get("rules")["data"]["groups"] for rule in group["rules"]]

    def _get(self, call: str, **parameters: Any) -> dict[str, Any]:
        # As a form: a long expression may exceed the length limit of an address.
        sent = {"data": parameters} if call.startswith("query") else {"params": parameters}
        method = "POST" if "data" in sent else "GET"
        answer = httpx.request(method, f"{self.url}/api/v1/{call}", timeout=20, trust_env=False, **sent)
        if answer.status_code != 200:
            raise ValueError(f"Prometheus does not answer {parameters.get('query', call)}: {answer.text}")
        found: dict[str, Any] = answer.json()
        return found


def _point(pair: Sequence[Any]) -> tuple[float, float]:
    return float(pair[0]), float(pair[1])
