"""One fleet scraped by a real Prometheus, and what Prometheus says of itself meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from urllib.request import ProxyHandler, build_opener

from prometheus_client.parser import text_string_to_metric_families

from dashboards.local import Prometheus, local_prometheus
from dashboards.simulated_fleet.fleet import fleet
from service.protocol.parent_death import owned

LOOK_SECONDS = 1.0
PATIENCE_INTERVALS = 10
_OPENER = build_opener(ProxyHandler({}))

SERIES, SAMPLES = "prometheus_tsdb_head_series", "prometheus_tsdb_head_samples_appended_total"
RESIDENT, CPU = "process_resident_memory_bytes", "process_cpu_seconds_total"


@dataclass(frozen=True, slots=True)
class Load:
    """What each replica takes in, and how often it is scraped."""

    device: str
    requests_per_second: float
    interval_seconds: int


@dataclass(frozen=True, slots=True)
class Reading:
    """Prometheus with `replicas` targets, over a window of whole scrape intervals.

    `scraped_series` are those of the pages; in `head_series` are also the five that Prometheus adds per
    target, and what the rules record. `resident_bytes` is the most of the window; `scrape_seconds` the
    longest scrape of its end.
    """

    replicas: int
    scraped_series: int
    head_series: int
    samples_per_second: float
    resident_bytes: int
    cpu_cores: float
    scrape_seconds: float


def measured(binary: str, folder: Path, replicas: int, load: Load, scrapes: int) -> Reading:
    """Read the Prometheus at `binary`, its data in `folder`, over `scrapes` intervals once all are up.

    Raises TimeoutError where not all of them come up, and PrometheusError where it does not start.
    """
    with (
        fleet(replicas, load.device, load.requests_per_second) as targets,
        local_prometheus(
            binary, folder, {"launchbound": targets}, f"{load.interval_seconds}s", owned=owned
        ) as prometheus,
    ):
        _await_all(prometheus, len(targets), load.interval_seconds)
        began, before = monotonic(), _own(prometheus)
        resident, after = before[RESIDENT], before
        while monotonic() - began < scrapes * load.interval_seconds:
            sleep(LOOK_SECONDS)
            after = _own(prometheus)
            resident = max(resident, after[RESIDENT])
        seconds = monotonic() - began
        return Reading(
            replicas=replicas,
            scraped_series=round(_single(prometheus, "sum(scrape_samples_scraped)")),
            head_series=round(after[SERIES]),
            samples_per_second=(after[SAMPLES] - before[SAMPLES]) / seconds,
            resident_bytes=round(resident),
            cpu_cores=(after[CPU] - before[CPU]) / seconds,
            scrape_seconds=_single(prometheus, "max(scrape_duration_seconds)"),
        )


def _await_all(prometheus: Prometheus, targets: int, interval_seconds: int) -> None:
    deadline = monotonic() + PATIENCE_INTERVALS * interval_seconds
    while (up := sum(health == "up" for health in prometheus.health().values())) < targets:
        if monotonic() > deadline:
            raise TimeoutError(
                f"{up} of {targets} replicas answered within {PATIENCE_INTERVALS} intervals: take fewer, or a"
                " longer --interval"
            )
        sleep(LOOK_SECONDS)


def _own(prometheus: Prometheus) -> dict[str, float]:
    """Prometheus' counts of itself, each summed over its labels: later versions count samples by type."""
    with _OPENER.open(f"{prometheus.url}/metrics", timeout=20) as answer:
        page = answer.read().decode()
    counts = dict.fromkeys((SERIES, SAMPLES, RESIDENT, CPU), 0.0)
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name in counts:
                counts[sample.name] += sample.value
    return counts


def _single(prometheus: Prometheus, expr: str) -> float:
    (series,) = prometheus.query(expr)
    return series.points[-1][1]
