"""One generation: the contract's fields, and timings whose parts are the whole."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from service.records import SIDES
from tests.support.serving import BODY, Front, running, until

TIMINGS = {
    "queue_seconds", "dispatch_seconds", "device_span_seconds", "kernel_seconds", "sync_wait_seconds",
    "other_seconds", "total_seconds", "time_to_first_token_seconds", "involuntary_switches", "prefill",
    "decode", "sources", "kernels", "launches", "profiled", "sampled",
}  # fmt: skip
PIECES = ("border_seconds", "front_seconds", "tokenise_seconds")
EXTRA = {"padded_prompt_tokens", "attended_tokens", "stall_seconds", "effective_batch", *PIECES}
PHASE = {
    "dispatch_low_seconds",
    "dispatch_high_seconds",
    "kernel_samples",
    "host_samples",
    "system_samples",
    "unclassified_samples",
    "samples_of",
    "minor_faults",
    "steps",
    "wall_seconds",
    "dispatch_seconds",
    "device_span_seconds",
    "kernel_seconds",
    "sync_wait_seconds",
    "period_seconds",
}


def header_milliseconds(header: str) -> dict[str, float]:
    """'name;dur=1.5, …' → name → 1.5."""
    pairs = (part.strip().split(";dur=") for part in header.split(","))
    return {name: float(value) for name, value in pairs}


def test_the_answer_has_the_fields_of_the_contract_and_no_others(front: Front) -> None:
    answer = front.generate().json()
    assert answer.keys() == {
        "id",
        "model",
        "mode",
        "device",
        "batch_size",
        "batch_bucket",
        "outputs",
        "usage",
        "timings",
    }
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


def test_a_mode_that_runs_as_another_form_here_is_reported_with_the_reason(front: Front) -> None:
    mode = front.generate("reduce-overhead").json()["mode"]
    assert (mode["requested"], mode["effective"]) == ("reduce-overhead", "compiled-cpp")
    assert "CUDA graphs" in mode["reason"]


def test_on_a_cpu_queue_dispatch_kernel_and_other_are_the_total(front: Front) -> None:
    timings = front.generate().json()["timings"]
    parts = [timings[f"{part}_seconds"] for part in ("queue", "dispatch", "kernel", "other")]
    assert sum(parts) == pytest.approx(timings["total_seconds"], abs=1e-12)
    assert timings["sync_wait_seconds"] is None
    assert timings["device_span_seconds"] is None


def test_on_cuda_queue_dispatch_sync_wait_and_other_are_the_total(cuda_front: Front) -> None:
    timings = cuda_front.generate().json()["timings"]
    parts = [timings[f"{part}_seconds"] for part in ("queue", "dispatch", "sync_wait", "other")]
    assert sum(parts) == pytest.approx(timings["total_seconds"], abs=1e-12)
    assert timings["kernel_seconds"] is None
    assert timings["device_span_seconds"] > 0


def test_border_front_and_tokenise_are_pieces_of_other(front: Front) -> None:
    timings = front.generate().json()["timings"]
    assert all(timings[piece] > 0 for piece in PIECES)
    assert sum(timings[piece] for piece in PIECES) <= timings["other_seconds"]


def test_the_first_token_comes_within_the_request(front: Front) -> None:
    timings = front.generate().json()["timings"]
    assert 0 < timings["time_to_first_token_seconds"] < timings["total_seconds"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_server_timing_header_is_the_body(device: str, request: pytest.FixtureRequest) -> None:
    front: Front = request.getfixturevalue("front" if device == "cpu" else "cuda_front")
    answer = front.generate()
    header = header_milliseconds(answer.headers["server-timing"])
    timings = answer.json()["timings"]
    measured = [
        name
        for name in ("queue", "dispatch", "kernel", "sync_wait", "other", "total")
        if timings[f"{name}_seconds"] is not None
    ]
    assert list(header) == measured
    for name in measured:
        assert header[name] == pytest.approx(timings[f"{name}_seconds"] * 1000, abs=1e-4)


def test_the_run_header_is_accepted(front: Front) -> None:
    assert front.generate(headers={"X-Launchbound-Run": "20260101-1"}).status_code == 200


def test_two_requests_of_one_id_are_both_served(own_front: Front) -> None:
    same = {"X-Request-ID": "same"}
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: own_front.generate(headers=same), range(8)))
    assert [answer.json()["id"] for answer in answers] == ["same"] * 8


def test_a_mode_that_warms_is_a_503_that_names_the_ready_ones() -> None:
    with running(states={"compiled": "warming", "reduce-overhead": "failed"}) as front:
        until(lambda: front.state.client.engine is not None, "the engine's status")
        answer = front.generate("compiled")
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) > 0
        error = answer.json()["error"]
        assert error["type"] == "mode_not_ready"
        assert error["message"] == "mode 'compiled' is warming; ready: eager, no_grad, inference_mode"
        failed = front.generate("reduce-overhead").json()["error"]
        assert failed["type"] == "mode_failed"
        assert "as commanded" in failed["message"]
        assert front.generate("eager", **BODY).status_code == 200


@pytest.mark.parametrize(("sample", "samples_of"), [(True, "request"), (False, "traffic")])
def test_a_request_says_whose_samples_its_split_rests_on_and_how_many(
    front: Front, sample: bool, samples_of: str
) -> None:
    timings = front.generate(sample=sample).json()["timings"]
    assert (timings["sampled"], timings["profiled"]) == (sample, False)
    for phase in (timings["prefill"], timings["decode"]):
        assert phase["samples_of"] == samples_of
        assert [phase[f"{side}_samples"] for side in SIDES] == [40, 60, 3, 2]


def test_a_request_without_samples_says_neither_split_nor_numbers(own_front: Front) -> None:
    timings = own_front.command("!unsplit").json()["timings"]
    assert timings["sources"] == {"dispatch": None, "kernel": None, "steps": "own"}
    decode = timings["decode"]
    told = ("samples_of", "dispatch_seconds", "kernel_seconds", *(f"{side}_samples" for side in SIDES))
    assert {decode[name] for name in told} == {None}


def test_a_request_that_cannot_be_sampled_is_refused_with_the_reason() -> None:
    with running(no_samples="timer_create is forbidden") as front:
        front.await_ready()
        error = front.generate(sample=True)
        assert error.status_code == 409
        assert error.json()["error"]["type"] == "cannot_sample"
        assert error.json()["error"]["param"] == "sample"
        assert "timer_create is forbidden" in error.json()["error"]["message"]


def test_a_request_is_profiled_or_sampled_but_not_both(front: Front) -> None:
    error = front.generate(sample=True, profile=True)
    assert error.status_code == 422
    assert "not both" in error.json()["error"]["message"]
