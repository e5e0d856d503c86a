"""A local Prometheus on loopback, from an installed binary, with the committed configuration."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

import yaml

CONFIGURATION = Path(__file__).parent / "prometheus.yml"
START_SECONDS = 30.0
_OPENER = build_opener(ProxyHandler({}))


class PrometheusError(RuntimeError):
    """Prometheus did not start; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class TimeSeries:
    """One series of a query's result: its labels, and (seconds since the epoch, value) in order of time."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Exemplar:
    """One request that a series points to: the series' labels and its own, its value, and when (epoch)."""

    series: Mapping[str, str]
    labels: Mapping[str, str]
    value: float
    timestamp: float


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

    def exemplars(self, expr: str, start: float, end: float) -> list[Exemplar]:
        """What the series in `expr` pointed to from `start` to `end`, in seconds since the epoch."""
        found = self._get("query_exemplars", query=expr, start=start, end=end)["data"]
        return [
            Exemplar(series["seriesLabels"], one["labels"], float(one["value"]), float(one["timestamp"]))
            for series in found
            for one in series["exemplars"]
        ]

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

    def _get(self, call: str, **parameters: object) -> dict[str, Any]:
        # As a form: a long expression may exceed the length limit of an address.
        form = urlencode(parameters).encode() if call.startswith("query") else None
        address = f"{self.url}/api/v1/{call}" + ("" if form else f"?{urlencode(parameters)}")
        try:
            with _OPENER.open(address, form, timeout=20) as response:
                answer: dict[str, Any] = json.load(response)
                return answer
        except OSError as error:
            detail = error.read().decode(errors="replace") if hasattr(error, "read") else str(error)
            raise ValueError(
                f"Prometheus does not answer {parameters.get('query', call)}: {detail}"
            ) from error


def configuration(targets: Mapping[str, Sequence[str]], interval: str) -> str:
    """The committed configuration for fixed addresses: job → ["host:port", …]; other jobs are left out."""
    content = yaml.safe_load(CONFIGURATION.read_text(encoding="utf-8"))
    content["global"] = {
        "scrape_interval": interval,
        "scrape_timeout": interval,
        "evaluation_interval": interval,
    }
    content["rule_files"] = [str(CONFIGURATION.parent / name) for name in content["rule_files"]]
    content["scrape_configs"] = [
        {"job_name": job["job_name"], "static_configs": [{"targets": list(targets[job["job_name"]])}]}
        for job in content["scrape_configs"]
        if job["job_name"] in targets
    ]
    return str(yaml.safe_dump(content))


@contextmanager
def local_prometheus(
    binary: str,
    folder: Path,
    targets: Mapping[str, Sequence[str]],
    interval: str = "5s",
    port: int = 0,
    owned: Callable[[list[str]], list[str]] = list,
) -> Iterator[Prometheus]:
    """Run `binary` until the block ends, its data and configuration in `folder`; port 0 takes a free one.

    `owned` makes of its command line one that also ends when this process does, however that ends.
    Raises PrometheusError with the end of its log where it does not start.
    """
    (folder / "prometheus.yml").write_text(configuration(targets, interval), encoding="utf-8")
    command = [
        binary,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--enable-feature=exemplar-storage",
    ]
    log = folder / "prometheus.log"
    with log.open("w", encoding="utf-8") as output:
        running = subprocess.Popen(owned(command), stdout=output, stderr=output)
    try:
        yield Prometheus(f"http://{_listening(running, log)}")
    finally:
        running.terminate()
        running.wait(timeout=20)


def _listening(running: subprocess.Popen[bytes], log: Path) -> str:
    """Wait until the log says that the server is ready; its address (the same lines in versions 2 and 3)."""
    deadline = monotonic() + START_SECONDS
    while monotonic() < deadline and running.poll() is None:
        text = log.read_text(encoding="utf-8", errors="replace")
        address = re.search(r'msg="?Listening on"? address=(\S+)', text)
        if address and "Server is ready" in text:
            return address[1]
        sleep(0.05)
    last = log.read_text(encoding="utf-8", errors="replace")[-500:]
    raise PrometheusError(f"Prometheus did not start; {log} ends with: {last}")


def _point(pair: Sequence[Any]) -> tuple[float, float]:
    return float(pair[0]), float(pair[1])
