"""Every exported series moves under a short load or stands here with its reason; they are not too many."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.front.metrics.catalogue import CATALOGUE, PREFIX
from tests.stack import running
from tests.stack.running import Stack

pytestmark = pytest.mark.stack

MOST_SERIES_PER_MODE = 800
STILL = {
    "requests_in_progress": "back at 0 when the load is over",
    "queue_depth": "back at 0 when the load is over",
    "device_bound_index": "a share of samples, which can stay as it is",
    "graph_breaks": "a fault",
    "recompiles": "a fault",
    "fallbacks": "a fault",
    "engine_restarts": "a fault",
    "connections": "back at what it was when the load is over",
    "connections_max": "a limit",
    "engine_up": "a state",
    "engine_involuntary_switches": "may be 0 on a quiet machine",
    "compile_seconds": "measured once, at warm-up",
    "step_operators": "a property of the mode, the same in every step",
    "mode_ready": "a state",
    "mode_failed": "a state",
    "mode_parity_max_abs_logit_difference": "measured once, at warm-up",
    "mode_effective_info": "a state",
    "warmup_seconds": "measured once, at warm-up",
    "build_info": "a state",
    "model_info": "a state",
}
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def by_family(page: str) -> dict[str, Series]:
    """Family without its prefix → sample name and labels → value."""
    families: dict[str, Series] = defaultdict(dict)
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            families[family.name.removeprefix(PREFIX)][sample.name, frozenset(sample.labels.items())] = (
                sample.value
            )
    return families


def test_every_family_moves_in_every_mode_unless_it_is_listed(stack: Stack) -> None:
    before, after = by_family(stack.before), by_family(stack.after)
    for name, series in after.items():
        if name in STILL or not name.startswith(tuple(row.name.removesuffix("_total") for row in CATALOGUE)):
            continue
        moved = {key for key, value in series.items() if value != before[name].get(key)}
        modes = {dict(labels).get("mode") for _, labels in moved}
        assert modes >= (set(running.MODES) if "mode" in dict(next(iter(series))[1]) else {None}), name


def test_the_list_names_only_what_is_exported(stack: Stack) -> None:
    assert STILL.keys() <= by_family(stack.after).keys()


def test_the_counters_hold_what_was_sent(stack: Stack) -> None:
    before, after = by_family(stack.before)["requests"], by_family(stack.after)["requests"]
    ok = {
        dict(labels)["mode"]: value - before[name, labels]
        for (name, labels), value in after.items()
        if ("outcome", "ok") in labels and name.endswith("_total")
    }
    assert sum(ok.values()) == stack.served
    assert {mode for mode, value in ok.items() if value} == set(running.MODES)


def test_a_mode_has_a_bounded_number_of_series(stack: Stack) -> None:
    modes = Counter(
        dict(labels).get("mode") for series in by_family(stack.after).values() for _, labels in series
    )
    assert max(count for mode, count in modes.items() if mode is not None) <= MOST_SERIES_PER_MODE
