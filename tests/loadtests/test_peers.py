"""A comparison with rivals: who takes part, what is compared, and what the tables say."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from loadtests.peers import run as running
from loadtests.peers import session
from loadtests.peers.catalogue import Rival
from loadtests.peers.contestants import call_seconds, steps_seconds
from loadtests.peers.installation import NotInstalled
from loadtests.peers.plan import PeersPlan
from loadtests.peers.process import RivalError, RivalProcess
from loadtests.peers.reference import Reference, ReferenceRow
from loadtests.peers.results import (
    Contestant,
    Limit,
    PeersError,
    PeersRun,
    ServiceRow,
    read_peers,
    write_peers,
)  # fmt: skip
from loadtests.peers.rounds import order
from loadtests.peers.run import run_peers
from loadtests.peers.session import fastest_read
from loadtests.peers.summary import added, added_ratio, service_standings, summaries
from loadtests.peers.table import leaving, markdown
from loadtests.report.peers_section import peers_section
from loadtests.run.target import Target
from service.statistics.intervals import Interval
from tests.support import fake_service
from tests.support.fake_service import Script, timings
from tests.support.made_peers import made_run

PLAN = PeersPlan(rounds=2, calls=2, requests=2, batches=(1, 2), prompt_tokens=2, new_tokens=4)


def test_ratios_are_paired_within_rounds() -> None:
    (found,) = summaries(made_run({"eager": 0.040, "compiled": 0.026, "ort": 0.020}))
    assert (found.best_mode, found.best_outside) == ("compiled", "ort")
    assert found.leaving is not None
    # Rounds differ by up to 4; the ratio does not.
    assert 1.28 < found.leaving.low < found.leaving.value < found.leaving.high < 1.32
    assert f"leaving PyTorch would buy {found.leaving.value:.2f}×" in leaving([found])


def test_leaving_can_cost_and_can_buy_nothing_that_shows() -> None:
    assert "would cost 2.0" in leaving(summaries(made_run({"eager": 0.010, "ort": 0.020})))
    assert "buy nothing that shows" in leaving(summaries(made_run({"eager": 0.020, "ort": 0.020})))
    assert "no runtime outside" in leaving(summaries(made_run({"eager": 0.020})))


def test_other_tokens_get_no_ratio_and_win_nothing() -> None:
    run = made_run({"eager": 0.040, "ort": 0.020, "fast": 0.001}, differing=["ort"])
    (found,) = summaries(run)
    (standing,) = [one for one in found.standings if one.contestant.name == "ort"]
    assert standing.ratio is None
    assert found.leaving is None
    page = markdown(run)
    assert "other tokens" in page
    assert "row 0, token 1: 2 instead of 3" in page


def test_a_round_is_shuffled_and_complete() -> None:
    orders = [order(["a", "b", "c"], [1, 4, 16], seed=0, number=number) for number in range(4)]
    assert all(sorted(one) == sorted(orders[0]) and len(one) == 9 for one in orders)
    assert len({tuple(one) for one in orders}) > 1
    assert orders[0] == order(["a", "b", "c"], [1, 4, 16], seed=0, number=0)


def test_a_modes_call_is_the_total_less_what_lies_around_it() -> None:
    shown = timings("eager", 1, 32)
    assert steps_seconds(shown) == pytest.approx(32 * 0.0021)
    assert call_seconds(shown) == pytest.approx(shown["total_seconds"] - 0.00035)
    assert call_seconds(shown) > steps_seconds(shown)
    shown["decode"]["wall_seconds"] = None
    with pytest.raises(RivalError, match="INSTRUMENTATION"):
        call_seconds(shown)


def test_what_a_service_adds_is_subtracted_request_by_request() -> None:
    row = ServiceRow(
        round=0, contestant="s", latency_seconds=[0.5, 0.1, 0.3], model_seconds=[0.4, 0.09, 0.15]
    )
    assert added(row) == pytest.approx(0.1)
    floor = ServiceRow(round=0, contestant="s", latency_seconds=[0.5, 0.1, 0.3], model_seconds=None)
    assert added(floor) == 0.3


def test_servers_are_ordered_by_what_they_add() -> None:
    run = made_run({"eager": 0.01})
    for name, over in (("launchbound", 0.003), ("floor", 0.001)):
        run.contestants.append(Contestant(name=name, kind="server"))
        run.service_rows += [
            ServiceRow(round=n, contestant=name, latency_seconds=[0.1 + over], model_seconds=[0.1])
            for n in range(8)
        ]
    assert [one.contestant.name for one in service_standings(run)] == ["floor", "launchbound"]
    assert "| floor | 1.00 (1.00–1.00) | 0.33× (0.33–0.33) |" in markdown(run)


def test_the_bandwidth_limit_is_the_time_of_reading_all_weights_once_per_step() -> None:
    found = Limit(weight_bytes=10_000_000, buffer_bytes=10_000_000, bytes_per_second=2e10, steps=32)
    assert found.seconds == pytest.approx(32 * 0.0005)
    run = made_run({"eager": 0.04})
    run.limit = found
    assert "*bandwidth limit (estimate)* | ≥ 16.0" in markdown(run)


def test_reading_takes_time_in_proportion_to_what_is_read() -> None:
    assert fastest_read(1 << 20, seconds=0.0) > 0


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    run = made_run({"eager": 0.04, "ort": 0.02})
    write_peers(tmp_path, run)
    assert read_peers(tmp_path) == run
    with pytest.raises(PeersError, match="is no comparison with rivals"):
        read_peers(tmp_path / "elsewhere")
    for content, said in (
        ("{}", "has format None"),
        ("[1]", "is broken"),
        ('{"format_version": 1}', "is broken"),
    ):
        (tmp_path / "peers.json").write_text(content)
        with pytest.raises(PeersError, match=said):
            read_peers(tmp_path)


@pytest.fixture
def rivals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Five fake runtimes, no server; an export that took place already; an engine with a core."""
    names = ("right", "wrong", "dies", "cannot load", "not installed")
    core = sorted(os.sched_getaffinity(0))[0]

    def rows(count: int) -> list[ReferenceRow]:
        return [
            ReferenceRow(
                prompt="p", prompt_tokens=[1, n], completion="x", completion_tokens=[n] * 4, margins=[1.0] * 4
            )
            for n in range(count)
        ]

    def make_reference(model: str, folder: Path, count: int, *_: int) -> Reference:
        return Reference(
            model_hash="0123456789ab", parameters=9, weight_bytes=1 << 20, vocabulary=16, end_of_text=0,
            rows=rows(count),
        )  # fmt: skip

    def interpreter(rival: Rival, *_: object) -> Path:
        if rival.name == "not installed":
            raise NotInstalled("no wheel for this Python")
        return Path(sys.executable)

    def process(command: list[str], log: Path) -> RivalProcess:
        return RivalProcess([command[0], "-m", "tests.support.fake_rival", command[2]], log)

    status = fake_service.engine_status
    monkeypatch.setattr(fake_service, "engine_status", lambda bucket: status(bucket) | {"cpus": [core]})
    monkeypatch.setattr(session, "RUNTIMES", tuple(Rival(name, name, "fake") for name in names))
    monkeypatch.setattr(session, "OUTSIDE_PYTORCH", frozenset(names))
    monkeypatch.setattr(session, "SERVERS", ())
    for module in (running, session):
        monkeypatch.setattr(module, "peers_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(running, "make_reference", make_reference)
    monkeypatch.setattr(session, "interpreter", interpreter)
    monkeypatch.setattr(session, "RivalProcess", process)


@pytest.mark.usefixtures("rivals")
def test_every_rival_is_a_row_or_a_reason(tmp_path: Path) -> None:
    with fake_service.fake_service(Script()) as url:
        run_peers(Target(url), "tiny", PLAN, tmp_path, lambda line: None)
    run = read_peers(tmp_path)
    why = {one.name: one.unavailable for one in run.contestants}
    assert why["right"] is why["wrong"] is why["eager"] is why["launchbound"] is None
    assert why["not installed"] == "no wheel for this Python"
    assert "unknown architecture" in str(why["cannot load"])
    assert "a last word" in str(why["dies"])
    visits = {(row.contestant, row.batch, row.round) for row in run.rows}
    assert {("right", batch, number) for batch in (1, 2) for number in (0, 1)} <= visits
    assert all(row.difference for row in run.rows if row.contestant == "wrong")
    assert not any(row.difference for row in run.rows if row.contestant != "wrong")
    assert {found.best_outside for found in summaries(run)} == {"right"}
    page = (tmp_path / "peers.md").read_text()
    assert "- not installed: no wheel for this Python" in page
    assert len(run.service_rows) == PLAN.rounds


@pytest.mark.usefixtures("rivals")
def test_every_round_is_kept_as_it_ends_and_until_the_last_the_files_say_incomplete(tmp_path: Path) -> None:
    kept = list[tuple[dict[str, int], str | None]]()

    def look(line: str) -> None:
        if ": round 2 of" in line:
            run = read_peers(tmp_path)
            assert {row.round for row in run.rows} >= {0}
            assert "**INCOMPLETE: no end is recorded" in (tmp_path / "peers.md").read_text()
            kept.append((run.finished, run.incomplete))

    with fake_service.fake_service(Script()) as url:
        run_peers(Target(url), "tiny", PLAN, tmp_path, look)
    first, second = kept
    assert first[0] == {"model calls": 1}
    assert second[0] == {"model calls": 2, "services": 1}
    assert read_peers(tmp_path).incomplete is None
    assert "INCOMPLETE" not in (tmp_path / "peers.md").read_text()


@pytest.mark.usefixtures("rivals")
def test_an_interrupted_comparison_is_kept_and_says_so(tmp_path: Path) -> None:
    def interrupt(line: str) -> None:
        if line.startswith("model calls: round 2"):
            raise KeyboardInterrupt

    with fake_service.fake_service(Script()) as url:
        run = run_peers(Target(url), "tiny", PLAN, tmp_path, interrupt)
    assert read_peers(tmp_path) == run
    assert {row.round for row in run.rows} == {0}
    assert run.incomplete == "INCOMPLETE: interrupted; 1 of 2 rounds of model calls finished."
    assert f"**{run.incomplete}**" in (tmp_path / "peers.md").read_text()
    assert peers_section(run).sentence.startswith("INCOMPLETE: interrupted")


@pytest.mark.usefixtures("rivals")
def test_a_mode_with_another_text_is_not_compared(tmp_path: Path) -> None:
    with fake_service.fake_service(Script(odd_mode="compiled")) as url:
        run = run_peers(Target(url), "tiny", PLAN, tmp_path, lambda line: None)
    for found in summaries(run):
        (odd,) = [one for one in found.standings if one.contestant.name == "compiled"]
        assert odd.ratio is None
        assert found.best_mode == "reduce-overhead"


@pytest.mark.usefixtures("rivals")
@pytest.mark.parametrize(
    ("script", "said"),
    [(Script(states=["warming"]), "warming up"), (Script(device="cuda"), "float32 on a CPU")],
)
def test_a_service_that_cannot_be_compared_is_refused(script: Script, said: str, tmp_path: Path) -> None:
    with fake_service.fake_service(script) as url, pytest.raises(PeersError, match=said):
        run_peers(Target(url), "tiny", PLAN, tmp_path, lambda line: None)


@pytest.mark.usefixtures("rivals")
@pytest.mark.parametrize(("field", "value", "said"), [("threads", 2, "one thread"), ("cpus", [], "no core")])
def test_an_engine_on_other_terms_is_refused(
    field: str, value: object, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = fake_service.engine_status
    monkeypatch.setattr(fake_service, "engine_status", lambda bucket: status(bucket) | {field: value})
    with fake_service.fake_service(Script()) as url, pytest.raises(PeersError, match=said):
        run_peers(Target(url), "tiny", PLAN, tmp_path, lambda line: None)


def test_what_is_lost_in_noise_has_no_ratio() -> None:
    def row(contestant: str, number: int, added: float) -> ServiceRow:
        return ServiceRow(
            contestant=contestant, round=number, latency_seconds=[0.1 + added], model_seconds=[0.1]
        )

    def ratio(own: float) -> Interval | None:
        rows = [row("x", n, own) for n in range(8)] + [row("launchbound", n, 0.002) for n in range(8)]
        return added_ratio(cast(PeersRun, SimpleNamespace(service_rows=rows)), "x", "launchbound")

    found = ratio(0.004)
    assert found is not None
    assert found.value == pytest.approx(2.0)
    assert ratio(-0.004) is None
