"""When a warm-up has settled: latency without a slope, and counters that are flat."""

from __future__ import annotations

from loadtests.run.schedule import WarmUp


def passes(*factors: float, counters: tuple[float, ...] = ()) -> WarmUp:
    """A warm-up with one pass per factor, over four cells."""
    warmup = WarmUp(2, 6)
    for number, factor in enumerate(factors):
        latencies = {
            f"cell {n}": factor * (0.1 + 0.01 * n) * (1 + 0.002 * (-1) ** (n + number)) for n in range(4)
        }
        count = counters[number] if counters else 0.0
        warmup.add(latencies, {"launchbound_recompiles_total": count})
    return warmup


def test_warming_up_takes_two_passes_at_least() -> None:
    assert not passes(1.0).settled
    assert passes(1.0, 1.0).settled


def test_warming_up_goes_on_while_latency_falls() -> None:
    assert not passes(2.0, 1.0).settled
    assert passes(2.0, 1.0, 1.0).settled


def two_passes(*changes: float) -> WarmUp:
    """Two passes; each cell's latency is so many times as long in the second."""
    warmup = WarmUp(2, 6)
    warmup.add({f"cell {n}": 0.1 for n in range(len(changes))}, {})
    warmup.add({f"cell {n}": 0.1 * change for n, change in enumerate(changes)}, {})
    return warmup


def test_a_latency_that_fell_by_18_percent_is_a_slope_however_wide_its_interval() -> None:
    wild = two_passes(0.45, 1.3, 0.6, 1.28)
    assert "-18.1%" in wild.reason
    assert not wild.settled
    assert not two_passes(0.82).settled


def test_a_small_fall_is_a_slope_only_where_the_cells_agree_on_it() -> None:
    assert two_passes(0.8, 1.1, 0.9, 1.05).settled
    assert not two_passes(0.94, 0.945, 0.95, 0.935).settled
    assert two_passes(0.98, 0.981, 0.979, 0.98).settled


def test_a_rising_latency_does_not_prolong_warming_up() -> None:
    assert passes(1.0, 1.3).settled


def test_warming_up_goes_on_while_something_compiles() -> None:
    assert not passes(1.0, 1.0, counters=(0, 1)).settled
    assert passes(1.0, 1.0, 1.0, counters=(0, 1, 1)).settled


def test_warming_up_is_given_up_after_its_last_pass() -> None:
    warmup = WarmUp(2, 3)
    over = [warmup.add({"a": 4.0**-n, "b": 3.9**-n}, {}) for n in range(3)]
    assert over == [False, False, True]
    assert not warmup.settled
