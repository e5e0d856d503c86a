"""One generation, plain and streamed; and a comparison, which runs one input through modes in turn."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from service.records import SIDES
from tests.support.serving import BODY, GENERATE, Event, Front, events, refused, running, until

TIMINGS = {
    "queue_seconds", "dispatch_seconds", "device_span_seconds", "kernel_seconds", "sync_wait_seconds",
    "other_seconds", "total_seconds", "time_to_first_token_seconds", "involuntary_switches", "prefill",
    "decode", "sources", "kernels", "launches", "profiled", "sampled",
}  # fmt: skip
PIECES = ("border_seconds", "front_seconds", "tokenise_seconds")
EXTRA = {"padded_prompt_tokens", "attended_tokens", "stall_seconds", "effective_batch", *PIECES}
PHASE = {
    "dispatch_low_seconds", "dispatch_high_seconds", "kernel_samples", "host_samples", "system_samples",
    "unclassified_samples", "samples_of", "minor_faults", "steps", "wall_seconds", "dispatch_seconds",
    "device_span_seconds", "kernel_seconds", "sync_wait_seconds", "period_seconds",
}  # fmt: skip
ANSWER = {
    "id", "model", "mode", "device", "batch_size", "batch_bucket", "outputs", "usage", "timings",
}  # fmt: skip


def header_milliseconds(header: str) -> dict[str, float]:
    """'name;dur=1.5, …' → name → 1.5."""
    pairs = (part.strip().split(";dur=") for part in header.split(","))
    return {name: float(value) for name, value in pairs}


def test_the_answer_has_the_fields_of_the_contract_and_no_others(front: Front) -> None:
    answer = front.generate().json()
    assert answer.keys() == ANSWER
    assert answer["mode"].keys() == {"requested", "effective", "reason"}
    assert answer["outputs"][0].keys() == {"text", "finish_reason", "completion_tokens"}
    assert answer["timings"].keys() == TIMINGS | EXTRA
    assert answer["timings"]["prefill"].keys() == answer["timings"]["decode"].keys() == PHASE
    assert answer["timings"]["sources"] == {"dispatch": "sampled", "kernel": "sampled", "steps": "own"}


def test_each_prompt_has_its_output_and_the_usage_counts_all(front: Front) -> None:
    answer = front.generate(prompts=["one", "two words"], max_new_tokens=3).json()
    assert [output["completion_tokens"] for output in answer["outputs"]] == [3, 3]
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}
    assert (answer["batch_size"], answer["batch_bucket"]) == (2, 4)


@pytest.mark.parametrize(
    ("device", "parts", "absent"),
    [
        ("cpu", ("queue", "dispatch", "kernel", "other"), {"sync_wait", "device_span"}),
        ("cuda", ("queue", "dispatch", "sync_wait", "other"), {"kernel"}),
    ],
)
def test_the_parts_are_the_total_and_the_header_is_the_body(
    request: pytest.FixtureRequest, device: str, parts: tuple[str, ...], absent: set[str]
) -> None:
    front: Front = request.getfixturevalue("front" if device == "cpu" else "cuda_front")
    answer = front.generate()
    timings = answer.json()["timings"]
    total = timings["total_seconds"]
    assert sum(timings[f"{part}_seconds"] for part in parts) == pytest.approx(total, abs=1e-12)
    assert {timings[f"{part}_seconds"] for part in absent} == {None}
    assert all(timings[piece] > 0 for piece in PIECES)
    assert sum(timings[piece] for piece in PIECES) <= timings["other_seconds"]
    assert 0 < timings["time_to_first_token_seconds"] < total
    header = header_milliseconds(answer.headers["server-timing"])
    assert list(header) == [*parts, "total"]
    for name, milliseconds in header.items():
        assert milliseconds == pytest.approx(timings[f"{name}_seconds"] * 1000, abs=1e-4)


def test_requests_of_one_id_are_all_served(own_front: Front) -> None:
    same = {"X-Request-ID": "same"}
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: own_front.generate(headers=same), range(8)))
    assert [answer.json()["id"] for answer in answers] == ["same"] * 8


def test_a_mode_that_is_not_ready_is_a_503_that_names_the_ready_ones(own_front: Front) -> None:
    own_front.command("!state compiled warming")
    own_front.command("!state reduce-overhead failed")
    answer = own_front.generate("compiled")
    error = refused(answer, 503)
    assert int(answer.headers["retry-after"]) > 0
    assert error["type"] == "mode_not_ready"
    assert error["message"] == "mode 'compiled' is warming; ready: eager, no_grad, inference_mode"
    failed = refused(own_front.generate("reduce-overhead"), 503)
    assert failed["type"] == "mode_failed"
    assert "as commanded" in failed["message"]
    assert own_front.generate().status_code == 200


@pytest.mark.parametrize(("sample", "samples_of"), [(True, "request"), (False, "traffic")])
def test_a_request_says_whose_samples_its_split_rests_on_and_how_many(
    front: Front, sample: bool, samples_of: str
) -> None:
    timings = front.generate(sample=sample).json()["timings"]
    assert (timings["sampled"], timings["profiled"]) == (sample, False)
    for phase in (timings["prefill"], timings["decode"]):
        assert phase["samples_of"] == samples_of
        assert [phase[f"{side}_samples"] for side in SIDES] == [40, 60, 3, 2]


def test_a_request_without_samples_has_neither_split_nor_numbers(own_front: Front) -> None:
    timings = own_front.command("!unsplit").json()["timings"]
    assert timings["sources"] == {"dispatch": None, "kernel": None, "steps": "own"}
    absent = ("samples_of", "dispatch_seconds", "kernel_seconds", *(f"{side}_samples" for side in SIDES))
    assert {timings["decode"][name] for name in absent} == {None}


def test_a_request_that_cannot_be_sampled_is_refused_with_the_reason(front: Front) -> None:
    assert "not both" in refused(front.generate(sample=True, profile=True), 422)["message"]
    with running(no_samples="timer_create is forbidden") as unsampled:
        unsampled.await_ready()
        error = refused(unsampled.generate(sample=True), 409)
        assert (error["type"], error["param"]) == ("cannot_sample", "sample")
        assert "timer_create is forbidden" in error["message"]


# ---------------------------------------------------------------- streams

HELD = {**BODY, "prompts": ["!hold"], "stream": True}


def stream(front: Front, **body: object) -> list[Event]:
    answer = front.generate(stream=True, **body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return list(events(answer.text.splitlines()))


def test_tokens_come_in_order_and_the_last_event_is_the_plain_answer(front: Front) -> None:
    body = {"prompts": ["a", "b"], "max_new_tokens": 3}
    got, plain = stream(front, **body), front.generate(**body).json()
    assert [name for name, _ in got] == ["token"] * 6 + ["result"]
    result = got[-1][1]
    assert (result.keys(), result["timings"].keys()) == (plain.keys(), plain["timings"].keys())
    assert result["outputs"] == plain["outputs"]
    for index in (0, 1):
        text = "".join(data["text"] for name, data in got if name == "token" and data["index"] == index)
        assert text == result["outputs"][index]["text"]


def test_the_first_token_leaves_before_the_job_has_ended_and_the_stream_is_observed_once(
    own_front: Front,
) -> None:
    with own_front.http.stream("POST", GENERATE, json=HELD) as answer:
        arriving = events(answer.iter_lines())
        assert next(arriving)[0] == "token"
        series = own_front.series()
        assert (series['requests_in_progress{mode="eager"}'], series["queue_depth"]) == (1, 0)
        own_front.command("!release", mode="no_grad")
        assert list(arriving)[-1][0] == "result"
    assert own_front.moved()['request_duration_seconds_count{mode="eager"}'] == 1
    assert own_front.moved()['requests_total{mode="eager",outcome="ok"}'] == 1


def test_a_failure_before_the_first_token_is_a_plain_error(front: Front) -> None:
    error = refused(front.command("!problem prompt_too_long", stream=True), 422)
    assert error["type"] == "prompt_too_long"


def test_a_failure_in_mid_stream_is_an_error_event_in_the_one_shape(own_front: Front) -> None:
    got = stream(own_front, prompts=["!die-after-tokens"])
    assert {name for name, _ in got[:-1]} == {"token"}
    assert got[-1][0] == "error"
    assert got[-1][1]["error"].keys() == {"type", "message", "param"}
    assert got[-1][1]["error"]["type"] == "engine_lost"


def test_a_deadline_in_mid_stream_is_an_error_event(own_front: Front) -> None:
    with own_front.going_by(request_timeout_seconds=0.3):
        assert stream(own_front, prompts=["!hold"])[-1][1]["error"]["type"] == "timeout"
    assert own_front.moved()['requests_total{mode="eager",outcome="timeout"}'] == 1


def test_a_stream_that_shutting_down_cuts_off_is_an_error_event_and_counted(own_front: Front) -> None:
    with own_front.http.stream("POST", GENERATE, json=HELD) as answer:
        arriving = events(answer.iter_lines())
        next(arriving)
        loop = own_front.state.supervisor._task.get_loop()
        loop.call_soon_threadsafe(own_front.state.client.abandon)
        assert list(arriving)[-1][1]["error"]["type"] == "shut_down"
    series = own_front.moved()
    assert series['requests_total{mode="eager",outcome="error"}'] == 1
    assert series['requests_rejected_total{reason="draining"}'] == 0


def test_a_client_that_leaves_a_stream_is_cancelled_in_the_engine(own_front: Front) -> None:
    headers = {"X-Request-ID": "leaver"}
    with own_front.http.stream("POST", GENERATE, json=HELD, headers=headers) as answer:
        next(answer.iter_lines())
    until(lambda: not own_front.state.client.in_progress(), "the job's end")
    assert own_front.command("!cancelled").json()["outputs"][0]["text"].split(",")[-1] == "leaver"
    assert own_front.moved()['requests_total{mode="eager",outcome="cancelled"}'] == 1


# A comparison runs the same input through modes in turn, and pairs each with eager


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
