"""What batching costs at a low load, measured at stand-ins."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import pytest

from loadtests.batching_cost.__main__ import main
from loadtests.batching_cost.visits import ALONE_REQUESTS, Round, Visit, due_times, measure, summary, visit
from loadtests.run import open_connection
from loadtests.run.open_connection import OpenConnection
from loadtests.run.target import TargetError
from tests.support.fake_service import Script, fake_service

FEW = {"mode": "eager", "load": 0.5, "rounds": 2, "requests": 3, "new_tokens": 4}


def quiet(_: str) -> None:
    """Tell nobody."""


def visited(*seconds: float) -> Visit:
    return Visit(latency_seconds=list(seconds), effective_batch=1.0)


def test_arrivals_are_of_the_rate_and_the_same_for_the_same_seed() -> None:
    due = due_times(rate=20.0, requests=4000, seed=3)
    assert due == due_times(rate=20.0, requests=4000, seed=3) != due_times(rate=20.0, requests=4000, seed=4)
    assert due == sorted(due)
    assert due[-1] / len(due) == pytest.approx(1 / 20, rel=0.05)


def test_a_drift_of_the_machine_is_not_a_cost_of_batching() -> None:
    rounds = [
        Round(off=visited(0.02 * n, 0.03 * n, 9.0), batched=visited(0.02, 0.033 * n, 9.0))
        for n in range(1, 9)
    ]
    found = summary(rounds)["times_as_long"]
    assert found["value"] == pytest.approx(1.1)
    assert found["high"] - found["low"] < 1e-6


def test_one_round_has_no_interval() -> None:
    found = summary([Round(off=visited(0.02), batched=visited(0.03))])["times_as_long"]
    assert (found["low"], found["high"], found["samples"]) == (0.0, None, 1)


def test_a_latency_begins_where_its_request_was_due() -> None:
    """Three due at once over one connection: the third has waited for two."""
    with fake_service(Script(service_seconds=0.05)) as url:
        connection = OpenConnection(url, {"prompts": ["a"], "max_new_tokens": 2}, "eager", None)
        found = visit([0.0, 0.0, 0.0], [connection])
        connection.close()
    assert all(
        seconds > least for seconds, least in zip(found.latency_seconds, (0.05, 0.1, 0.15), strict=True)
    )
    assert found.effective_batch == 1.0


def test_a_connection_that_idled_is_opened_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_connection, "IDLE_SECONDS", 0.0)
    with fake_service(Script()) as url:
        connection = OpenConnection(url, {"prompts": ["a"], "max_new_tokens": 2}, "eager", None)
        connection.request()
        first = connection._connection.sock
        connection.request()
        assert connection._connection.sock is not first
        connection.close()


def test_both_services_get_the_same_requests_and_every_latency_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, merging = Script(), Script(batching="continuous")
    with fake_service(plain) as off, fake_service(merging) as batched:
        arguments = [
            "--rounds",
            "3",
            "--requests",
            "4",
            "--load",
            "0.9",
            "--mode",
            "eager",
            "--new-tokens",
            "4",
        ]
        assert main([off, batched, *arguments, "--out", str(tmp_path / "new")]) == 0
    assert sum(plain.ran.values()) == sum(merging.ran.values()) == ALONE_REQUESTS + 3 * 4
    document = json.loads((tmp_path / "new" / "batching_cost-eager.json").read_text())
    assert [len(one[way]["latency_seconds"]) for one in document["rounds"] for way in ("off", "batched")] == [
        4
    ] * 6
    assert document["summary"]["effective_batch"] == fmean([1.0] * 3)
    assert document["batched"]["engine"]["batching"] == "continuous"
    assert "| eager |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("off", "batched", "remedy"),
    [
        (Script(batching="window"), Script(batching="continuous"), "--batching off first"),
        (Script(), Script(), "does not merge requests"),
        (Script(), Script(batching="continuous", dtype="bfloat16"), "differ in more than batching: dtype"),
    ],
)
def test_services_that_are_not_to_be_compared_are_refused(off: Script, batched: Script, remedy: str) -> None:
    with fake_service(off) as one, fake_service(batched) as other, pytest.raises(TargetError, match=remedy):
        measure(one, other, **FEW, tell=quiet)


def test_a_request_that_fails_ends_the_measurement() -> None:
    broken = Script(batching="continuous", fail_after=ALONE_REQUESTS + 1)
    with (
        fake_service(Script()) as one,
        fake_service(broken) as other,
        pytest.raises(TargetError, match="500"),
    ):
        measure(one, other, **FEW, tell=quiet)


def test_an_address_where_nothing_answers_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["http://127.0.0.1:1", "http://127.0.0.1:1"]) == 2
    assert "nothing answers at" in capsys.readouterr().err
