"""A comparison runs the same input through modes in turn, and pairs each with eager."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.serving import BODY, Front, refused, running

FIELDS = {
    "mode", "effective", "median_seconds", "dispatch_seconds", "dispatch_low_seconds",
    "dispatch_high_seconds", "kernel_seconds", "samples", "speedup", "speedup_without_compiler",
    "text_equal",
}  # fmt: skip


def compare(front: Front, **body: object) -> list[dict[str, Any]]:
    answer = front.http.post("/v1/compare", json={**BODY, **body})
    assert answer.status_code == 200, answer.text
    results: list[dict[str, Any]] = answer.json()["results"]
    return results


def test_the_answer_has_the_fields_of_the_contract(front: Front) -> None:
    answer = front.http.post("/v1/compare", json={**BODY, "repeats": 2, "prompts": ["a", "b"]}).json()
    assert answer.keys() == {"batch_size", "results"}
    assert answer["batch_size"] == 2
    assert all(result.keys() == FIELDS for result in answer["results"])


def test_by_default_all_ready_modes_are_compared_and_another_is_a_503(own_front: Front) -> None:
    own_front.command("!state compiled warming")
    modes = [result["mode"] for result in compare(own_front, repeats=1)]
    assert modes == ["eager", "no_grad", "inference_mode", "reduce-overhead"]
    answer = own_front.http.post("/v1/compare", json={**BODY, "modes": ["eager", "compiled"]})
    assert refused(answer, 503)["type"] == "mode_not_ready"


def test_each_mode_runs_once_per_round_and_once_sampled(own_front: Front) -> None:
    before = int(own_front.command("!served").json()["outputs"][0]["text"])
    compare(own_front, modes=["eager", "compiled"], repeats=3)
    assert own_front.command("!served").json()["outputs"][0]["text"] == str(before + 9)
    moved = own_front.moved()
    assert moved['requests_total{mode="compiled",outcome="ok"}'] == 4
    assert moved['request_duration_seconds_count{mode="compiled"}'] == 3


def test_dispatch_and_kernel_are_by_the_shares_of_the_sampled_run(front: Front) -> None:
    """Of the other runs dispatch is 0.6, in prefill and in decode."""
    found = compare(front, modes=["eager"], repeats=1, prompts=["!halved"])[0]
    share = found["dispatch_seconds"] / (found["dispatch_seconds"] + found["kernel_seconds"])
    assert share == pytest.approx((0.6 + 3 * 0.5) / 4)


def test_where_requests_cannot_be_sampled_modes_run_once_per_round() -> None:
    with running(no_samples="forbidden") as front:
        front.await_ready()
        result = compare(front, modes=["eager"], repeats=3)[0]
        assert (result["dispatch_seconds"], result["samples"]) == (None, None)
        assert front.series()['requests_total{mode="eager",outcome="ok"}'] == 3


def test_eight_rounds_are_run_where_nothing_is_said_and_speed_ups_have_intervals(front: Front) -> None:
    eager, plain, compiled = compare(front, modes=["eager", "inference_mode", "compiled"])
    assert (eager["speedup"], plain["speedup_without_compiler"]) == (None, None)
    for found, vs in (
        (plain["speedup"], "eager"),
        (compiled["speedup"], "eager"),
        (eager["speedup_without_compiler"], "inference_mode"),
        (compiled["speedup_without_compiler"], "inference_mode"),
    ):
        assert found["vs"] == vs
        assert found["low"] <= found["ratio"] <= found["high"]


def test_fewer_than_eight_rounds_bound_nothing_and_without_eager_there_is_nothing_to_compare_with(
    front: Front,
) -> None:
    speedup = compare(front, modes=["eager", "no_grad"], repeats=7)[1]["speedup"]
    assert speedup["ratio"] > 0
    assert (speedup["low"], speedup["high"]) == (None, None)
    for result in compare(front, modes=["no_grad", "compiled"], repeats=1):
        absent = (result["speedup"], result["speedup_without_compiler"], result["text_equal"])
        assert absent == (None, None, None)


def test_equal_texts_are_distinguished_from_different_ones(own_front: Front) -> None:
    equal = compare(own_front, modes=["eager", "no_grad"], repeats=1)
    assert [result["text_equal"] for result in equal] == [True, True]
    # The fake's answer to this prompt is a running number, so no two are alike.
    different = compare(own_front, modes=["eager", "no_grad"], repeats=1, prompts=["!served"])
    assert [result["text_equal"] for result in different] == [True, False]


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
