"""Starts of a service: in which order they are made, and how a table, a page and JSON show them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from launchbound import app
from loadtests import startup
from loadtests.run.target import Target
from loadtests.startup import PAGE_FILE, PHASES, STARTS_FILE, Kind, Starts, as_json, means, run_starts, table

ENGINE: dict[str, Any] = {
    "model": "tiny", "modes": ["eager", "compiled"], "batch_buckets": [1], "torch": "2.13.0",
    "device_name": "a processor", "threads": 2,
}  # fmt: skip
SECONDS = {**dict.fromkeys(PHASES, 0.0), "import": 2.0}


def parts(dynamo: float, compiled: int = 0) -> dict[str, float]:
    counted = {"compiled": compiled, "compiler_runs": 1 + 9 * compiled, "beside_seconds": 0.0}
    return {**SECONDS, "dynamo": dynamo, "total_seconds": 2.0 + dynamo, **counted}


@pytest.fixture
def starts() -> Starts:
    return {"cold": [parts(30.0, 2)], "warm": [parts(1.0), parts(3.0), parts(1.0)]}


def document(began_ns: int) -> dict[str, Any]:
    """What GET /v1/modes has of an engine that began at `began_ns` and took 5 s, of which 2 s compiled."""
    own = {phase: seconds for phase, seconds in SECONDS.items() if phase != "front"} | {"inductor": 3.0}
    start = {"began_ns": began_ns, "ready_ns": began_ns + 5_000_000_000, "seconds": own}
    counted = {"compiler_runs": 7, "beside_seconds": 1.5}
    modes = [{"compilations": []}, {"compilations": [{"cold": True}, {"cold": False}]}]
    return {"engine": {**ENGINE, "start": {**start, **counted}}, "modes": modes}


@pytest.mark.parametrize(
    ("cold", "warm", "order"),
    [(2, 2, "cold warm cold warm"), (1, 3, "cold warm warm warm"), (2, 0, "cold cold")],
)
def test_cold_starts_have_an_empty_cache_and_warm_ones_that_of_the_cold_one_before(
    cold: int, warm: int, order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    @contextmanager
    def launch(cache: Path) -> Iterator[Target]:
        assert [one.name for one in cache.parent.iterdir()] == [cache.name]
        made.append("warm" if (cache / "compiled").exists() else "cold")
        (cache / "compiled").touch()
        yield cast(Target, None)

    now_ns = startup.perf_counter_ns()
    monkeypatch.setattr(startup, "perf_counter_ns", lambda: now_ns)
    monkeypatch.setattr(startup, "await_modes", lambda *_, **__: document(now_ns + 1_000_000_000))
    cache, folder = tmp_path / "cache", tmp_path / "out"
    cache.mkdir()
    folder.mkdir()
    counts: dict[Kind, int] = {"cold": cold, "warm": warm}
    found = run_starts(launch, counts, ["eager"], cache, folder, lambda _: None)
    assert " ".join(made) == order
    assert list(cache.iterdir()) == []
    assert {kind: len(of) for kind, of in found.items()} == counts
    one = found["cold"][0]
    assert (one["front"], one["inductor"], one["total_seconds"]) == (1.0, 3.0, 6.0)
    assert sum(one[phase] for phase in PHASES) == one["total_seconds"]
    assert (one["compiled"], one["compiler_runs"], one["beside_seconds"]) == (1, 7, 1.5)


def test_the_files_have_every_start_so_far(starts: Starts, tmp_path: Path) -> None:
    startup._write(starts, ENGINE, tmp_path)
    written = json.loads((tmp_path / STARTS_FILE).read_text())
    assert written["starts"] == starts
    assert written["means"] == as_json(starts)
    page = (tmp_path / PAGE_FILE).read_text()
    assert "Ready after 32.0 s (cold) and 3.67 s (warm)" in page
    assert '"name": "AOTAutograd"' in page


def test_means_of_the_parts_sum_to_the_mean_of_the_whole(starts: Starts) -> None:
    warm = means(starts)["warm"]
    assert warm["total_seconds"].value == pytest.approx(2.0 + 5.0 / 3)
    assert sum(warm[phase].value for phase in PHASES) == pytest.approx(warm["total_seconds"].value)


def test_an_interval_is_of_several_starts_and_never_below_nothing(starts: Starts) -> None:
    found = means(starts)
    assert found["warm"]["dynamo"].low == 0.0
    assert found["warm"]["dynamo"].high > 3.0
    assert math.isinf(found["cold"]["dynamo"].high)
    assert as_json(starts)["cold"]["dynamo"] == {"mean": 30.0, "low": None, "high": None, "samples": 1}


def test_the_table_has_every_part_the_whole_and_what_was_compiled(starts: Starts) -> None:
    shown = table(starts)
    rows = {str(row[0]): [str(cell) for cell in row[1:]] for row in shown.rows}
    assert list(rows)[: len(PHASES)] == [name for name, _ in PHASES.values()]
    assert rows["until it is ready"][0] == "32.0"
    assert [cell.split()[0] for cell in rows["callables compiled"]] == ["2.00", "0"]
    assert shown.heads[1:] == ["cold, mean of 1", "warm, mean of 3"]
    assert table({"cold": starts["cold"], "warm": []}).heads[1:] == ["cold, mean of 1"]


def test_a_start_that_cannot_be_is_bad_input(tmp_path: Path) -> None:
    out = f"--out={tmp_path / 'out'}"
    none = CliRunner().invoke(app, ["startup", "--cold=0", out])
    assert none.exit_code == 2
    unknown = CliRunner().invoke(app, ["startup", "--modes=fastest", out])
    assert (unknown.exit_code, "fastest" in unknown.stderr) == (2, True)
    assert not (tmp_path / "out").exists()
