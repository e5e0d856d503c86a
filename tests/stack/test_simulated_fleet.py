"""The simulated fleet beside the real service, and in a real Prometheus."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dashboards.simulated_fleet.measurement import Load, measured
from dashboards.simulated_fleet.projection import ADDED_PER_TARGET
from dashboards.simulated_fleet.replica import Replica
from tests.stack import running
from tests.stack.running import Stack

pytestmark = pytest.mark.stack

OF_AN_INSTANCE = ("build_info", "model_info", "mode_effective_info", "warmup_seconds", "python_info")
"""Their labels say what runs where, so that a simulated one has others; as many of them."""


def series(page: str) -> set[tuple[str, frozenset[tuple[str, str]]]]:
    return {
        (sample.name, frozenset(sample.labels.items()))
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if not sample.name.endswith(OF_AN_INSTANCE)
    }


def test_a_simulated_replica_shows_the_series_of_the_real_service(stack: Stack) -> None:
    page, _ = Replica("cpu", running.MODES, running.BATCH_SIZES).page("")
    assert series(page.decode()) == series(stack.after)


def test_prometheus_has_as_many_series_as_the_replicas_show(prometheus_binary: str, tmp_path: Path) -> None:
    each = Replica("cpu").series().total()
    reading = measured(prometheus_binary, tmp_path, 3, Load("cpu", 2.0, interval_seconds=1), scrapes=3)
    assert reading.scraped_series == 3 * each
    # Beyond them: what Prometheus adds per target, and what the rules record.
    recorded = reading.head_series - 3 * (each + ADDED_PER_TARGET)
    assert 0 <= recorded < 0.05 * reading.head_series
    assert reading.resident_bytes > 10**6
    assert reading.samples_per_second > 0
