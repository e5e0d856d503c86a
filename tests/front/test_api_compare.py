"""A comparison runs the same input through modes in turn, and pairs each with eager."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from service.front.engine_client import PendingRequest
from service.records import Job, Outcome
from tests.front.test_api_bad_input import refused
from tests.support.serving import BODY, Front, running, until


def compare(front: Front, **body: object) -> dict[str, Any]:
    answer = front.http.post("/v1/compare", json={**BODY, **body})
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def test_the_answer_has_the_fields_of_the_contract(front: Front) -> None:
    answer = compare(front, repeats=2, prompts=["a", "b"])
    assert answer.keys() == {"batch_size", "results"}
    assert answer["batch_size"] == 2
    for result in answer["results"]:
        assert result.keys() == {
            "mode",
            "effective",
            "median_seconds",
            "dispatch_seconds",
            "dispatch_low_seconds",
            "dispatch_high_seconds",
            "kernel_seconds",
            "samples",
            "speedup",
            "speedup_without_compiler",
            "text_equal",
        }


def test_by_default_all_ready_modes_are_compared() -> None:
    with running(states={"compiled": "warming"}) as front:
        until(lambda: front.state.client.engine is not None, "the engine's status")
        modes = [result["mode"] for result in compare(front, repeats=1)["results"]]
        assert modes == ["eager", "no_grad", "inference_mode", "reduce-overhead"]


def test_each_mode_runs_once_per_round_and_once_sampled(own_front: Front) -> None:
    before = int(own_front.command("!served").json()["outputs"][0]["text"])
    compare(own_front, modes=["eager", "compiled"], repeats=3)
    assert own_front.command("!served").json()["outputs"][0]["text"] == str(before + 9)
    series = own_front.series()
    assert series['requests_total{mode="compiled",outcome="ok"}'] == 4
    assert series['request_duration_seconds_count{mode="compiled"}'] == 3


def test_dispatch_and_kernel_are_by_the_shares_of_the_sampled_run(
    own_front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = compare(own_front, modes=["eager"], repeats=1)["results"][0]
    submit = own_front.state.client.submit

    def halved(job: Job, follows: bool = False) -> PendingRequest:
        pending = submit(job)
        finish = pending.finish

        def changed(outcome: Outcome) -> None:
            timings = outcome.timings
            if job.sample and timings is not None and timings.decode.wall_seconds is not None:
                half = msgspec.structs.replace(
                    timings.decode, dispatch_seconds=0.5 * timings.decode.wall_seconds
                )
                outcome = msgspec.structs.replace(
                    outcome, timings=msgspec.structs.replace(timings, decode=half)
                )
            finish(outcome)

        monkeypatch.setattr(pending, "finish", changed)
        return pending

    monkeypatch.setattr(own_front.state.client, "submit", halved)
    found = compare(own_front, modes=["eager"], repeats=1)["results"][0]
    total = plain["dispatch_seconds"] + plain["kernel_seconds"]
    assert found["dispatch_seconds"] + found["kernel_seconds"] == pytest.approx(total)
    assert 0.5 < found["dispatch_seconds"] / total < 0.6  # of decode a half, of prefill still 0.6


def test_where_requests_cannot_be_sampled_modes_run_once_per_round() -> None:
    with running(no_samples="forbidden") as front:
        front.await_ready()
        result = compare(front, modes=["eager"], repeats=3)["results"][0]
        assert (result["dispatch_seconds"], result["samples"]) == (None, None)
        assert front.series()['requests_total{mode="eager",outcome="ok"}'] == 3


def test_speedup_is_against_eager_with_its_interval_around_it(front: Front) -> None:
    eager, other = compare(front, modes=["eager", "no_grad"], repeats=8)["results"]
    assert eager["speedup"] is None
    assert other["speedup"]["vs"] == "eager"
    assert other["speedup"]["low"] <= other["speedup"]["ratio"] <= other["speedup"]["high"]


def test_eight_rounds_are_run_where_nothing_is_said(front: Front) -> None:
    speedup = compare(front, modes=["eager", "no_grad"])["results"][1]["speedup"]
    assert speedup["low"] is not None


@pytest.mark.parametrize("repeats", [1, 7])
def test_fewer_than_eight_rounds_bound_nothing(front: Front, repeats: int) -> None:
    speedup = compare(front, modes=["eager", "no_grad"], repeats=repeats)["results"][1]["speedup"]
    assert speedup["ratio"] > 0
    assert (speedup["low"], speedup["high"]) == (None, None)


def test_modes_are_also_compared_with_the_best_one_without_a_compiler(front: Front) -> None:
    results = compare(front, modes=["eager", "inference_mode", "compiled"], repeats=8)["results"]
    beside = [result["speedup_without_compiler"] for result in results]
    assert beside[1] is None
    assert [found["vs"] for found in beside if found] == ["inference_mode"] * 2
    assert compare(front, modes=["eager"], repeats=1)["results"][0]["speedup_without_compiler"] is None


def test_without_eager_there_is_nothing_to_compare_with(front: Front) -> None:
    for result in compare(front, modes=["no_grad", "compiled"], repeats=1)["results"]:
        assert (result["speedup"], result["text_equal"]) == (None, None)


def test_equal_texts_are_distinguished_from_different_ones(own_front: Front) -> None:
    equal = compare(own_front, modes=["eager", "no_grad"], repeats=1)["results"]
    assert [result["text_equal"] for result in equal] == [True, True]
    # The fake's answer to this prompt is a running number, so no two are alike.
    different = compare(own_front, modes=["eager", "no_grad"], repeats=1, prompts=["!served"])["results"]
    assert [result["text_equal"] for result in different] == [True, False]


def test_a_mode_that_is_not_ready_is_a_503() -> None:
    with running(states={"compiled": "warming"}) as front:
        until(lambda: front.state.client.engine is not None, "the engine's status")
        answer = front.http.post("/v1/compare", json={**BODY, "modes": ["eager", "compiled"]})
        assert refused(answer, 503)["type"] == "mode_not_ready"


@pytest.mark.parametrize("sampled", [True, False])
def test_sampled_texts_share_one_seed(
    own_front: Front, monkeypatch: pytest.MonkeyPatch, sampled: bool
) -> None:
    seeds = []
    submit = own_front.state.client.submit
    monkeypatch.setattr(
        own_front.state.client, "submit", lambda job, follows: seeds.append(job.seed) or submit(job)
    )
    compare(own_front, modes=["eager", "no_grad"], repeats=2, temperature=0.7 if sampled else 0.0)
    assert len(seeds) == 6  # each mode twice, and once sampled
    assert len(set(seeds)) == 1
    assert (seeds[0] is not None) == sampled
