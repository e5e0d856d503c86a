"""The simulated replicas show what a real one shows, and the lines through what is read of them are right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from dashboards.simulated_fleet.__main__ import main
from dashboards.simulated_fleet.measurement import Reading
from dashboards.simulated_fleet.pages import accepted, address
from dashboards.simulated_fleet.projection import ADDED_PER_TARGET, fitted, on_paper
from dashboards.simulated_fleet.replica import BATCH_SIZES, OPEN_METRICS, Replica
from dashboards.simulated_fleet.table import table
from service.front.metrics.catalogue import CATALOGUE, PREFIX, REQUEST_BUCKETS
from service.front.settings import Settings

SCALE = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
NEVER_ON = {
    "cpu": {"request_stall_seconds"}
    | {row.name for row in CATALOGUE if row.start == "cuda" or row.name.startswith("memory_")}
    | {
        "step_device_seconds",
        "step_kernel_seconds",
        "step_kernels",
        "step_launches",
        "profiler_dispatch_ratio",
    },
    "cuda": {"request_stall_seconds", "samples_total"},
}
"""What this device cannot have, or only where requests are merged; all else a replica that was used has."""


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_simulated_replica_has_every_family_that_its_device_can_have(device: str) -> None:
    shown = set(Replica(device).series())
    for row in CATALOGUE:
        family = PREFIX + row.name.removesuffix("_total").removesuffix("_info")
        assert (family in shown) == (row.name not in NEVER_ON[device]), row.name


def test_the_default_batch_sizes_are_the_services() -> None:
    assert [*BATCH_SIZES] == Settings.model_fields["batch_sizes"].default


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_request_moves_values_and_adds_no_series(device: str) -> None:
    replica = Replica(device)

    def values() -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        page, _ = replica.page("")
        return {
            (sample.name, tuple(sample.labels.items())): sample.value
            for family in parse_text(page.decode())
            for sample in family.samples
        }

    before = values()
    replica.serve()
    after = values()
    assert after.keys() == before.keys()
    moved = {name for name, labels in after if after[name, labels] != before[name, labels]}
    assert moved >= {f"{PREFIX}requests_total", f"{PREFIX}request_duration_seconds_bucket"}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_page_on_scale_has_the_counted_series(device: str) -> None:
    series = Replica(device).series()
    one_mode = Replica(device, ["inference_mode"]).series()
    assert f"| {device} | {series.total():,} | {one_mode.total():,} |" in SCALE
    if device == "cpu":
        paper = on_paper(series.total(), 1000, 15, 15)
        for stated in (
            f"{len(REQUEST_BUCKETS) + 1} buckets × 5 modes × 1,000 replicas",
            f"{paper.series:,} series",
            f"{paper.samples_per_second:,.0f} samples per second",
            f"{paper.head_bytes / 1e9:.1f} GB",
            f"{paper.disk_bytes[0] / 1e9:.0f} to {paper.disk_bytes[1] / 1e9:.0f} GB",
        ):
            assert stated in SCALE


def test_a_line_goes_through_points_that_lie_on_one_and_its_interval_holds_those_that_do_not() -> None:
    exact = fitted([1, 2, 4], [7, 9, 13])
    assert exact.at(1000) == pytest.approx((2005, 2005, 2005))
    value, low, high = fitted([1, 2, 3, 4], [2, 5, 5, 8]).at(5)
    # By hand: slope 1.8, intercept 0.5, residual √0.9, t(2) = 4.3027, √(1 + 1/4 + 2.5²/5) = √2.5.
    assert value == pytest.approx(9.5)
    assert high - value == pytest.approx(4.3027 * (0.9 * 2.5) ** 0.5, rel=1e-4)
    assert value - low == pytest.approx(high - value)
    with pytest.raises(ValueError, match="three points"):
        fitted([1, 2], [1, 2])


def test_on_paper_is_replicas_times_series_over_the_interval() -> None:
    paper = on_paper(995, 10, 5, retention_days=1)
    assert paper.series == 10 * (995 + ADDED_PER_TARGET)
    assert paper.samples_per_second == 2000
    assert paper.head_bytes == 30e6
    assert paper.disk_bytes == (2000 * 86400, 2 * 2000 * 86400)


def test_the_table_says_what_each_fleet_and_the_line_and_the_rules_say() -> None:
    readings = [Reading(n, 100 * n, 105 * n, 7.0 * n, (50 + n) * 10**6, 0.1, 0.02) for n in (10, 20, 40)]
    lines = [*table(readings, 1000, on_paper(100, 1000, 15, 15))]
    assert lines[2] == "| 10 | 1,050 | 70 | 60 | 0.10 | 20 |"
    assert lines[5].startswith("| **1,000** by the line, 95 % | 105,000 (105,000 to 105,000) | 7,000 (")
    assert "| 1,050 (1,050 to 1,050) |" in lines[5]
    assert lines[6] == "| 1,000 by rules of thumb | 105,000 | 7,000 | 315 | – | – |"


def test_replicas_answer_at_addresses_of_their_own_on_loopback() -> None:
    assert [address(number) for number in (0, 1, 255, 999)] == [
        "127.0.0.1",
        "127.0.0.2",
        "127.0.1.0",
        "127.0.3.232",
    ]


def test_a_replica_answers_in_the_format_that_is_asked_for() -> None:
    head = f"GET /metrics HTTP/1.1\r\nHost: x\r\nACCEPT: {OPEN_METRICS}\r\n\r\n".encode()
    assert accepted(head) == OPEN_METRICS
    assert accepted(b"GET / HTTP/1.1\r\n\r\n") == ""
    assert Replica("cpu").page(OPEN_METRICS)[0].endswith(b"# EOF\n")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--replicas", "1,2,100000000"], "name smaller --replicas"),
        (["--binary", ""], "apt-get install prometheus"),
    ],
)
def test_what_is_too_much_for_this_machine_is_refused(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--replicas", "1,2,3", "--binary", "prometheus", *options]) == 2
    assert said in capsys.readouterr().err


def refused_by(parser: Callable[[list[str]], int], arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        parser(arguments)
    return int(ended.value.code or 0)


def test_fewer_than_three_fleets_are_bad_input() -> None:
    assert refused_by(main, ["--replicas", "5,5,10"]) == 2
