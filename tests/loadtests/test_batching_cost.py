"""What batching costs at a low load, measured at stand-ins."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean, median
from typing import Any

import msgspec
import pytest

from loadtests.batching_cost.__main__ import main
from loadtests.batching_cost.measure import FORMAT_VERSION, RESULT_FILE, measure
from loadtests.batching_cost.rounds import ALONE_REQUESTS, Round, load_found, one_round, summary
from loadtests.batching_cost.visits import Visit, arrive_apart, due_times, visit
from loadtests.run import open_connection
from loadtests.run.document_file import write_result
from loadtests.run.open_connection import OpenConnection
from loadtests.run.target import TargetError
from tests.support.fake_service import Script, fake_service

FEW = {"mode": "eager", "load": 0.5, "rounds": 2, "requests": 3, "new_tokens": 4}


def quiet(_: str) -> None:
    """Tell nobody."""


def laid_out(layout: str, seconds: float) -> dict[str, Any]:
    """Of GET /v1/modes."""
    return {"layout": layout, "reason": "", "step_seconds": {layout: {"1": seconds}}}


def visited(*seconds: float) -> Visit:
    return Visit(latency_seconds=list(seconds), effective_batch=1.0)


def round_of(off: Visit, batched: Visit, apart: list[int]) -> Round:
    return Round(rate=10.0, alone_seconds=0.03, off=off, batched=batched, apart=apart)


def test_arrivals_are_of_the_rate_and_the_same_for_the_same_seed() -> None:
    due = due_times(rate=20.0, requests=4000, seed=3)
    assert due == due_times(rate=20.0, requests=4000, seed=3) != due_times(rate=20.0, requests=4000, seed=4)
    assert due == sorted(due)
    assert due[-1] / len(due) == pytest.approx(1 / 20, rel=0.05)


def test_a_drift_of_the_machine_is_not_a_cost_of_batching() -> None:
    rounds = [
        round_of(off=visited(0.02 * n, 0.03 * n, 9.0), batched=visited(0.02, 0.033 * n, 9.0), apart=[])
        for n in range(1, 9)
    ]
    found = summary(rounds)
    assert found["times_as_long"]["value"] == pytest.approx(1.1)
    assert found["times_as_long"]["high"] - found["times_as_long"]["low"] < 1e-6
    assert (found["apart_requests"], found["apart_times_as_long"], found["cost"]) == (0, None, None)


def test_what_two_processes_differ_by_is_not_a_cost_of_batching() -> None:
    """The second is 1.2 times slower throughout; of what is left 1.05 is batching's."""
    slower = [
        round_of(off=visited(0.02, 0.03, 0.08), batched=visited(1.2 * 0.02, 1.26 * 0.03, 9.0), apart=[0]),
        round_of(off=visited(0.03, 0.02, 0.08), batched=visited(1.26 * 0.03, 1.2 * 0.02, 9.0), apart=[1]),
        round_of(off=visited(0.03), batched=visited(9.0), apart=[]),
    ]
    found = summary(slower)
    assert found["apart_requests"] == 2
    assert found["apart_times_as_long"]["value"] == pytest.approx(1.2)
    assert (found["cost"]["value"], found["cost"]["samples"]) == (pytest.approx(1.05), 2)


def test_one_round_has_no_interval() -> None:
    found = summary([round_of(off=visited(0.02), batched=visited(0.03), apart=[0])])
    for name in ("times_as_long", "apart_times_as_long", "cost"):
        assert (found[name]["low"], found[name]["high"], found[name]["samples"]) == (0.0, None, 1)
    assert found["cost"]["value"] == pytest.approx(1.0)


def test_who_met_nobody_is_told_by_the_arrivals_alone() -> None:
    """Of a latency of 10 ms alone: 30 ms clear before, 15 ms after."""
    assert arrive_apart([0.0, 0.016, 0.047, 0.1, 0.101], alone_seconds=0.01) == [0, 2]
    assert arrive_apart([0.0], alone_seconds=0.01) == [0]


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


def test_latencies_are_in_order_of_arrival_though_a_later_request_is_answered_first() -> None:
    slow, quick = Script(service_seconds=0.8), Script(service_seconds=0.2)
    with fake_service(slow) as one, fake_service(quick) as other:
        ways = [
            OpenConnection(url, {"prompts": ["a"], "max_new_tokens": 2}, "eager", None)
            for url in (one, other)
        ]
        found = visit([0.0, 0.0, 0.3, 0.6], ways)  # one of the first two is the slow one's, and answered last
        for way in ways:
            way.close()
    assert max(found.latency_seconds) == max(found.latency_seconds[:2]) > 0.8


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
    assert sum(plain.ran.values()) == sum(merging.ran.values()) == 3 * (ALONE_REQUESTS + 4)
    document = json.loads((tmp_path / "new" / "batching_cost-eager.json").read_text())
    assert [len(one[way]["latency_seconds"]) for one in document["rounds"] for way in ("off", "batched")] == [
        4
    ] * 6
    assert document["summary"]["effective_batch"] == fmean([1.0] * 3)
    assert all(one["rate"] == pytest.approx(0.9 / one["alone_seconds"]) for one in document["rounds"])
    assert document["batched"]["engine"]["batching"] == "continuous"
    assert "| eager |" in capsys.readouterr().out


def test_one_service_that_merges_does_both() -> None:
    """So that no two processes differ: every second visit runs alone, and so does what is asked before it."""
    merging = Script(batching="continuous")
    with fake_service(merging) as url:
        document = measure(url, url, **FEW, tell=quiet)
    asked = [bool(body.get("alone")) for _, body in merging.bodies]
    assert (asked.count(True), asked.count(False)) == (2 * (ALONE_REQUESTS + 3), 2 * (ALONE_REQUESTS + 3))
    assert asked[2 * ALONE_REQUESTS : 2 * ALONE_REQUESTS + 6] == [True] * 3 + [False] * 3
    assert "alone" not in document["request"]
    assert document["off"] == document["batched"]


@pytest.mark.parametrize(
    ("off", "batched", "remedy"),
    [
        (
            Script(batching="window"),
            Script(batching="continuous"),
            "name it alone, or one that is served with --batching off first",
        ),
        (Script(), Script(), "does not merge requests"),
        (Script(), Script(batching="continuous", dtype="bfloat16"), "differ in more than batching: dtype"),
        (
            Script(),
            Script(batching="continuous", linears=laid_out("transposed", 0.0004)),
            "linears None and transposed",
        ),
    ],
)
def test_services_that_are_not_to_be_compared_are_refused(off: Script, batched: Script, remedy: str) -> None:
    with fake_service(off) as one, fake_service(batched) as other, pytest.raises(TargetError, match=remedy):
        measure(one, other, **FEW, tell=quiet)


def test_services_that_found_the_same_layout_in_different_times_are_alike() -> None:
    off = Script(linears=laid_out("transposed", 0.0004))
    batched = Script(batching="continuous", linears=laid_out("transposed", 0.0005))
    with fake_service(off) as one, fake_service(batched) as other:
        assert measure(one, other, **FEW, tell=quiet)["batched"]["engine"]["linears"] == batched.linears


def test_the_load_that_was_found_is_told_beside_the_one_asked_for() -> None:
    """Where no two may have met: 1.5 latencies alone after it and 3 before, at a hundredth of the load."""
    with fake_service(Script()) as one, fake_service(Script(batching="continuous")) as other:
        found = measure(one, other, **{**FEW, "load": 0.01}, tell=quiet)
        apart = [
            one["rate"] * one["off"]["latency_seconds"][n] for one in found["rounds"] for n in one["apart"]
        ]
    assert found["summary"]["apart_requests"] == len(apart) > 0
    assert found["load_found"] == pytest.approx(median(apart))


def test_the_arrivals_follow_a_service_that_becomes_faster() -> None:
    script = Script(service_seconds=0.1)
    with fake_service(script) as one, fake_service(Script(batching="continuous")) as other:
        ways = [
            [OpenConnection(url, {"prompts": ["a"], "max_new_tokens": 2}, "eager", None)]
            for url in (one, other)
        ]
        slow = one_round(ways, load=0.5, requests=2, number=0)
        script.service_seconds = 0.01
        quick = one_round(ways, load=0.5, requests=2, number=1)
        for way in ways:
            way[0].close()
    assert slow.alone_seconds > 0.1 > 3 * quick.alone_seconds
    assert [one.rate * one.alone_seconds for one in (slow, quick)] == pytest.approx([0.5, 0.5])


def test_the_mean_tells_of_those_few_who_waited_long() -> None:
    found = summary([round_of(off=visited(1.0, 1.0, 1.0), batched=visited(1.0, 1.0, 4.0), apart=[0])] * 2)
    assert found["times_as_long"]["value"] == pytest.approx(1.0)
    assert found["mean_times_as_long"]["value"] == pytest.approx(2.0)


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


def measured(folder: Path, **changes: Any) -> Path:
    """A folder with a measurement of two rounds in which merging took 1.1 and 1.3 times as long."""
    engine = {"batching": "continuous", "model_hash": "a", "device_name": "EPYC"}
    rounds = [
        round_of(off=visited(0.02), batched=visited(0.02 * ratio), apart=[0])
        for ratio in changes.pop("ratios", (1.1, 1.3))
    ]
    document = {
        "format_version": FORMAT_VERSION,
        "request": {"mode": "eager", "prompts": ["a"]},
        "load": 0.3,
        "load_found": load_found(rounds),
        "off": {"url": "http://127.0.0.1:1", "engine": engine},
        "batched": {"url": "http://127.0.0.1:1", "engine": engine},
        "summary": summary(rounds),
        "rounds": msgspec.to_builtins(rounds),
    }
    write_result(folder, RESULT_FILE.format(mode="eager"), document | changes)
    return folder


def test_rounds_of_two_measurements_are_put_together_beside_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each round weighs the same: of 1.1 and 1.3, and three times 1.0, the geometric mean is 1.074."""
    folders = [measured(tmp_path / "one"), measured(tmp_path / "two", ratios=(1.0, 1.0, 1.0))]
    assert main([str(folder) for folder in folders]) == 0
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [(line[1], line[7].split(" ")[0]) for line in lines] == [
        ("2", "1.196"),
        ("3", "1.000"),
        ("5", "1.074"),
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"load": 0.6}, "not put together, load differs: 0.3 and 0.6"),
        ({"off": {"url": "http://127.0.0.1:2", "engine": {}}}, "number of services differs: 1 and 2"),
        ({"batched": {"url": "http://127.0.0.1:1", "engine": {"model_hash": "b"}}}, "differs"),
        ({"format_version": FORMAT_VERSION - 1}, "has format 4, this version reads 5"),
    ],
)
def test_measurements_of_different_settings_are_not_put_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], words: str
) -> None:
    folders = [measured(tmp_path / "one"), measured(tmp_path / "two", **changes)]
    assert main([str(folder) for folder in folders]) == 2
    assert words in capsys.readouterr().err


def test_a_folder_without_a_measurement_of_the_mode_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(measured(tmp_path / "one")), "--mode", "compiled"]) == 2
    assert "batching_cost-compiled.json cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["http://127.0.0.1:1"], "folders only"),
        (["--out", "elsewhere"], "stay where they are"),
    ],
)
def test_folders_are_neither_mixed_with_addresses_nor_written_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], words: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([str(measured(tmp_path / "one")), *more])
    assert words in capsys.readouterr().err
