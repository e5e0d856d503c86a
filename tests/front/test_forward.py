"""A service of a user's module: its calls, what is refused, and how modes are compared by them."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy
import pytest
from pydantic import ValidationError
from safetensors.numpy import save

from service.forward_records import BatchPlace, ForwardWork
from service.front.advice import ServedRequests
from service.front.request_timing import RequestTiming, add_up
from service.front.schemas import MAX_CALLS, MAX_PROFILED_CALLS
from service.front.settings import Settings
from service.records import Job, Outcome, Parity, PhaseTimings, Timings
from service.workloads import FORWARD, GENERATE, of_job
from tests.support.serving import BODY, JSON, Front, logged, refused, running, until
from tests.support.serving import GENERATE as GENERATE_PATH

MODULE = "ranker.py:build"
PATH = "/v1/modes/eager/forward"
COMPARE = "/v1/compare"
WORK: dict[str, object] = {"batch_size": 4}

ANSWER = {"id", "model", "mode", "device", "batch_size", "calls", "outputs", "timings"}
TIMINGS = {
    "queue_seconds", "dispatch_seconds", "device_span_seconds", "kernel_seconds", "sync_wait_seconds",
    "stall_seconds", "other_seconds", "border_seconds", "front_seconds", "total_seconds",
    "involuntary_switches", "effective_batch", "forward", "sources", "kernels", "launches", "profiled",
    "sampled",
}  # fmt: skip


@pytest.fixture(scope="module")
def _front() -> Iterator[Front]:
    with running({"model": MODULE}) as started:
        started.await_ready()
        yield started


@pytest.fixture
def module(_front: Front) -> Front:
    """A front that serves a module in batches of 1 and 4; `moved` counts from now on."""
    until(lambda: not _front.state.client.in_progress(), "the end of what ran")
    _front._before = _front.series()
    return _front


def call(front: Front, mode: str = "eager", **body: object) -> httpx.Response:
    """Fields that are not given are those of WORK; inputs stand in place of it."""
    given = body if body.keys() & {"inputs", "safetensors"} else {**WORK, **body}
    return front.http.post(f"/v1/modes/{mode}/forward", json=given)


def command(front: Front, text: str, **body: object) -> httpx.Response:
    """Have the fake engine do something, at a call of batch 1."""
    return call(front, inputs=[[text]], **body)


def job_of(front: Front, **body: object) -> dict[str, Any]:
    """The job that the engine got."""
    answer = command(front, "!job", outputs=True, **body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["outputs"]
    return found


def put_batch(front: Front, patched: pytest.MonkeyPatch, place: BatchPlace | None) -> None:
    """Have the module take its batch at `place`."""
    client = front.state.client
    assert client.engine is not None
    patched.setattr(client, "engine", msgspec.structs.replace(client.engine, batch_place=place))


def put_sizes(front: Front, patched: pytest.MonkeyPatch, sizes: list[str]) -> None:
    client = front.state.client
    assert client.engine is not None
    patched.setattr(client, "engine", msgspec.structs.replace(client.engine, input_sizes=sizes))


def file_of(**shapes: list[int]) -> bytes:
    """A safetensors file of bytes, all 0."""
    return save({name: numpy.zeros(shape, numpy.uint8) for name, shape in shapes.items()})


# ---------------------------------------------------------------- the answer


def test_the_answer_has_the_phase_forward_and_nothing_of_tokens(module: Front) -> None:
    answer = call(module, calls=3).json()
    assert answer.keys() == ANSWER
    assert (answer["model"], answer["batch_size"], answer["calls"]) == (MODULE, 4, 3)
    assert answer["mode"] == {"requested": "eager", "effective": "eager", "reason": None}
    assert answer["outputs"] is None
    timings = answer["timings"]
    assert timings.keys() == TIMINGS
    assert (timings["forward"]["steps"], timings["effective_batch"]) == (3, 4.0)


def test_the_parts_are_the_total_and_the_header_is_the_body(module: Front) -> None:
    answer = call(module)
    timings, header = answer.json()["timings"], answer.headers["server-timing"]
    parts = ("queue", "dispatch", "kernel", "other")
    assert sum(timings[f"{part}_seconds"] for part in parts) == pytest.approx(timings["total_seconds"])
    assert [part.partition(";")[0] for part in header.split(", ")] == [*parts, "total"]
    assert f"total;dur={timings['total_seconds'] * 1000:.4f}" in header


def test_outputs_are_answered_on_request_as_the_engine_wrote_them(module: Front) -> None:
    scores = call(module, outputs=True).json()["outputs"]["scores"]
    assert scores == {"dtype": "float32", "shape": [4, 2], "data": [[0.5, -1.0]] * 4}


def test_the_engine_gets_what_was_asked(module: Front) -> None:
    client = module.state.client
    jobs: list[Job] = []
    submit = client.submit
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(client, "submit", lambda job, follows: jobs.append(job) or submit(job))
        call(module, seed=7, calls=2.0, profile=True)
    assert jobs[0].forward == ForwardWork(batch_size=4, seed=7, calls=2)
    assert (jobs[0].profile, jobs[0].sample, jobs[0].batch_size) == (True, False, 4)
    sent = job_of(module, calls=5, sample=True)
    assert (sent["prompts"], sent["sample"], sent["forward"]["calls"]) == ([], True, 5)
    assert sent["forward"]["batch_size"] == 1


@pytest.mark.parametrize(
    ("inputs", "place", "rows"),
    [
        ("[[[0.5, 1], [2, 3], [4, 5], [6, 7]], true]", BatchPlace(path=[0]), 4),
        ('{ "scale": 2.5, "x" : [ [1.0] ], "y": [] }', BatchPlace(path=["x"]), 1),
        ("[7, [1, 2, 3, 4]]", BatchPlace(path=[1]), 4),
        ("[[[1, 2, 3, 4], [5, 6, 7, 8]]]", BatchPlace(path=[0], dimension=1), 4),
        ('[[7, {"ids": [1]}], [1, 2]]', BatchPlace(path=[0, 1, "ids"]), 1),
    ],
)
def test_inputs_reach_the_engine_as_they_were_sent_and_say_the_batch_size(
    module: Front, monkeypatch: pytest.MonkeyPatch, inputs: str, place: BatchPlace, rows: int
) -> None:
    put_batch(module, monkeypatch, place)
    jobs: list[Job] = []
    submit = module.state.client.submit
    monkeypatch.setattr(module.state.client, "submit", lambda job, follows: jobs.append(job) or submit(job))
    answer = module.http.post(PATH, content=f'{{"inputs": {inputs}}}', headers=JSON)
    assert answer.status_code == 200, answer.text
    assert answer.json()["batch_size"] == rows
    assert jobs[0].forward == ForwardWork(batch_size=rows, inputs=inputs.encode())


def test_safetensors_reach_the_engine_as_the_file_that_they_are_and_say_the_batch_size(
    module: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_batch(module, monkeypatch, BatchPlace(path=["x"], dimension=1))
    jobs: list[Job] = []
    submit = module.state.client.submit
    monkeypatch.setattr(module.state.client, "submit", lambda job, follows: jobs.append(job) or submit(job))
    content = file_of(scale=[9], x=[2, 4, 3000])
    answer = call(module, safetensors=b64encode(content).decode())
    assert answer.status_code == 200, answer.text
    assert answer.json()["batch_size"] == 4
    assert jobs[0].forward == ForwardWork(batch_size=4, safetensors=content)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (BatchPlace(path=["x"]), "inputs: expected an object (arguments by name), with 'x' in it"),
        (BatchPlace(path=[2]), "inputs: expected a list (of positional arguments, or nested), with 2 in it"),
        (BatchPlace(path=[0, "a"]), "inputs[0]: expected an object (arguments by name), with 'a' in it"),
        (BatchPlace(path=[0], dimension=2), "inputs[0][0][0]: expected nested lists"),
        (None, "inputs: this module's inputs do not tell the batch size: send batch_size and seed"),
    ],
)
def test_inputs_without_a_batch_where_the_module_has_it_are_refused(
    module: Front, monkeypatch: pytest.MonkeyPatch, place: BatchPlace | None, said: str
) -> None:
    put_batch(module, monkeypatch, place)
    error = refused(call(module, inputs=[[[1, 2]], 3]), 422)
    assert (error["param"], error["message"]) == ("inputs", said)


@pytest.mark.parametrize(
    ("content", "place", "said"),
    [
        (b"no file of tensors", BatchPlace(path=[0]), "this is no file of that format (Error while"),
        ({"x": [4]}, BatchPlace(path=[0]), "no tensor '0' with the batch in its dimension 0"),
        ({"0": [4]}, BatchPlace(path=[0], dimension=1), "no tensor '0' with the batch in its dimension 1"),
        ({"0": [4]}, BatchPlace(path=[0, "a"]), "argument 0 is a tree of tensors: send inputs"),
        ({"0": [3]}, BatchPlace(path=[0]), "a batch of 3 is not served here"),
    ],
)
def test_safetensors_without_a_batch_where_the_module_has_it_are_refused(
    module: Front,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes | dict[str, list[int]],
    place: BatchPlace,
    said: str,
) -> None:
    put_batch(module, monkeypatch, place)
    sent = content if isinstance(content, bytes) else file_of(**content)
    error = refused(call(module, safetensors=b64encode(sent).decode()), 422)
    assert (error["type"], error["param"]) == ("invalid_request", "safetensors")
    assert error["message"].startswith(f"safetensors: {said}")


@pytest.mark.parametrize(("asked", "sent"), [(512, "512"), ("512", "512"), (128, None), (None, None)])
def test_a_size_reaches_the_engine_and_the_first_is_that_of_no_size(
    module: Front, monkeypatch: pytest.MonkeyPatch, asked: object, sent: str | None
) -> None:
    put_sizes(module, monkeypatch, ["128", "512"])
    jobs: list[Job] = []
    submit = module.state.client.submit
    monkeypatch.setattr(module.state.client, "submit", lambda job, follows: jobs.append(job) or submit(job))
    assert call(module, size=asked).status_code == 200
    compare = {**WORK, "size": asked, "modes": ["eager"], "repeats": 1}
    assert module.http.post(COMPARE, json=compare).status_code == 200
    assert [job.forward and job.forward.size for job in jobs] == [sent] * len(jobs)
    assert len(jobs) >= 2


def test_a_size_that_is_not_served_is_refused_with_those_that_are(
    module: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = refused(call(module, size=3), 422)
    assert (error["param"], error["message"]) == (
        "size", "size: '3' is not served here: the module has none: leave it out",
    )  # fmt: skip
    put_sizes(module, monkeypatch, ["128", "512"])
    for path in (PATH, COMPARE):
        error = refused(module.http.post(path, json={**WORK, "size": "3"}), 422)
        assert error["message"] == "size: '3' is not served here: send one of 128, 512"


# ---------------------------------------------------------------- what is refused

BAD_FIELDS: dict[str, tuple[str, dict[str, object]]] = {
    "neither": ("batch_size", {}),
    "a batch that is not configured": ("batch_size", {"batch_size": 3}),
    "no batch": ("batch_size", {"batch_size": 0}),
    "a batch that is no number": ("batch_size", {"batch_size": "4"}),
    "no calls": ("calls", {**WORK, "calls": 0}),
    "too many calls": ("calls", {**WORK, "calls": MAX_CALLS + 1}),
    "too many profiled calls": ("calls", {**WORK, "calls": MAX_PROFILED_CALLS + 1, "profile": True}),
    "a size that is a list": ("size", {**WORK, "size": [128]}),
    "a seed over 63 bits": ("seed", {**WORK, "seed": 2**63}),
    "prompts": ("prompts", {**WORK, "prompts": ["a"]}),
    "a stream": ("stream", {**WORK, "stream": True}),
    "profiled and sampled": ("sample", {**WORK, "profile": True, "sample": True}),
    "both": ("batch_size", {"batch_size": 1, "inputs": [[1]]}),
    "a seed of inputs": ("seed", {"seed": 1, "inputs": [[1]]}),
    "inputs in a batch that is not configured": ("inputs", {"inputs": [[1, 2, 3]]}),
    "inputs of no rows": ("inputs", {"inputs": {"x": []}}),
    "no inputs": ("inputs", {"inputs": []}),
    "inputs without a batch": ("inputs", {"inputs": {"x": 1.0}}),
    "inputs that are text": ("inputs", {"inputs": "abc"}),
    "inputs that are null": ("inputs", {"inputs": None}),
    "safetensors that are null": ("safetensors", {"safetensors": None}),
    "safetensors that are no base64": ("safetensors", {"safetensors": "a file!"}),
    "safetensors and inputs": ("safetensors", {"inputs": [[1]], "safetensors": "AAAA"}),
    "a batch of safetensors": ("batch_size", {"batch_size": 1, "safetensors": "AAAA"}),
    "a seed of safetensors": ("seed", {"seed": 1, "safetensors": "AAAA"}),
}


@pytest.mark.parametrize(("param", "body"), BAD_FIELDS.values(), ids=BAD_FIELDS.keys())
def test_a_bad_field_is_a_422_that_names_it(module: Front, param: str, body: dict[str, object]) -> None:
    error = refused(module.http.post(PATH, json=body), 422)
    assert error["param"] == param
    assert error["message"].startswith(f"{param}: ")
    assert module.moved()['requests_total{mode="eager",outcome="rejected"}'] == 1


def test_the_sizes_that_are_served_are_named(module: Front) -> None:
    message = "batch_size: a batch of 3 is not served here: send one of 1, 4, or start the service with"
    assert message in refused(call(module, batch_size=3), 422)["message"]
    assert message in refused(module.http.get("/v1/advice?batch_size=3"), 422)["message"]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"inputs": [[1..2]]}', b'{"inputs": [[NaN]]}', b'{"inputs": ' + b"[" * 100_000]
)
def test_a_body_that_is_no_request_is_a_422(module: Front, body: bytes) -> None:
    refused(module.http.post(PATH, content=body, headers=JSON), 422)
    assert call(module).status_code == 200


def test_inputs_over_the_limit_of_bodies_are_a_413_with_a_remedy_for_modules(module: Front) -> None:
    rows = json.dumps({"inputs": [[[0.5] * 150_000] * 4]})
    error = refused(module.http.post(PATH, content=rows, headers=JSON), 413)
    assert (error["type"], "batch_size and seed" in error["message"]) == ("body_too_large", True)


def test_large_inputs_below_it_are_served(module: Front) -> None:
    assert call(module, inputs=[[[0.5] * 40_000] * 4]).status_code == 200


def test_an_unknown_mode_is_a_404_and_a_module_that_cannot_be_sampled_a_409(module: Front) -> None:
    assert refused(call(module, "fastest"), 404)["type"] == "unknown_mode"
    with running({"model": MODULE}, no_samples="timer_create is forbidden") as unsampled:
        unsampled.await_ready()
        error = refused(call(unsampled, sample=True), 409)
        assert (error["type"], error["param"]) == ("cannot_sample", "sample")


# ---------------------------------------------------------------- one service, one workload


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", GENERATE_PATH),
        ("POST", "/v1/modes/auto/generate"),
    ],
)
def test_a_route_of_language_models_is_a_409_that_names_the_right_one(
    module: Front, method: str, path: str
) -> None:
    error = refused(module.http.request(method, path, json=BODY), 409)
    assert error["type"] == "wrong_workload"
    assert "POST /v1/modes/{mode}/forward" in error["message"]
    assert f"the module {MODULE}" in error["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/studies/tape"),
        ("POST", "/v1/studies/rms-norm"),
    ],
)
def test_a_study_of_language_models_is_a_409_that_names_those_of_a_module(
    module: Front, method: str, path: str
) -> None:
    error = refused(module.http.request(method, path, json={}), 409)
    assert error["type"] == "wrong_workload"
    assert "of a module try one of operators, timeline, budget, layers" in error["message"]


def test_studies_of_a_module_are_of_its_call_in_a_batch_that_is_served(tmp_path: Path) -> None:
    with running({"model": MODULE}, anatomy=tmp_path) as front:
        front.await_ready()
        unknown = refused(front.http.get("/v1/modes/eager/anatomy"), 404)
        assert '"phase":"forward"' in unknown["message"]
        for name, body in {"operators": {"mode": "eager", "batch_size": 4}, "timeline": {}}.items():
            answer = front.http.post(f"/v1/studies/{name}", json=body)
            assert answer.status_code == 200, answer.text
        ran = [json.loads(line) for line in (tmp_path / "studies").read_text().splitlines()]
        assert [(name, given["phase"]) for name, given in ran] == [
            ("operators", "forward"), ("timeline", "forward"),
        ]  # fmt: skip
        assert front.http.get("/v1/modes/eager/anatomy?batch_size=4").status_code == 200
        for param, value in {"batch_size": 2, "phase": "decode"}.items():
            answer = front.http.post("/v1/studies/operators", json={"mode": "eager", param: value})
            assert refused(answer, 422)["param"] == param


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/models", "/v1/chat/completions"])
def test_openais_routes_say_so_in_openais_shape(module: Front, path: str) -> None:
    method = "GET" if path == "/v1/models" else "POST"
    answer = module.http.request(method, path, json={"model": "x", "prompt": "a"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "wrong_workload")


@pytest.mark.parametrize("path", [PATH, "/v1/modes/auto/forward"])
def test_a_call_of_a_language_model_is_a_409_that_names_the_right_route(front: Front, path: str) -> None:
    error = refused(front.http.post(path, json=WORK), 409)
    assert error["type"] == "wrong_workload"
    assert "POST /v1/modes/{mode}/generate" in error["message"]
    assert "the language model tiny" in error["message"]


def test_without_the_key_nothing_is_said_of_what_is_served() -> None:
    with running({"model": MODULE, "api_key": "k3y"}) as locked:
        for path in (PATH, GENERATE_PATH):
            assert refused(locked.http.post(path, json=WORK), 401)["type"] == "unauthorised"


def test_the_models_name_says_what_a_service_serves() -> None:
    assert Settings(model=MODULE).workload is Settings(model="package.ranker:build").workload is FORWARD
    assert Settings(model="tiny").workload is Settings(model="hf:owner/name").workload is GENERATE


def test_calls_of_a_module_cannot_be_merged() -> None:
    with pytest.raises(ValidationError, match="are not merged; leave it out"):
        Settings(model=MODULE, batching="continuous")


# ---------------------------------------------------------------- ends


def test_a_client_that_leaves_is_cancelled_in_the_engine(module: Front) -> None:
    with pytest.raises(httpx.ReadTimeout):
        module.http.post(PATH, json={"inputs": [["!hold"]]}, timeout=0.3)
    until(lambda: not module.state.client.in_progress(), "the job's end")
    assert module.moved()['requests_total{mode="eager",outcome="cancelled"}'] == 1


def test_a_passed_deadline_is_a_504(module: Front) -> None:
    with module.going_by(request_timeout_seconds=0.2):
        error = refused(command(module, "!hold"), 504)
    assert error["message"].endswith("ask for fewer calls")
    assert module.moved()['requests_total{mode="eager",outcome="timeout"}'] == 1


def test_out_of_memory_is_a_503_with_a_remedy_for_modules(module: Front) -> None:
    assert refused(command(module, "!oom"), 503)["message"].endswith("send a smaller batch")


def test_what_the_engine_refuses_is_a_422(module: Front) -> None:
    assert refused(command(module, "!problem invalid_request"), 422)["message"] == "as commanded"


# ---------------------------------------------------------------- what is made of it


def test_a_comparison_runs_each_mode_once_per_round_and_compares_what_they_return(module: Front) -> None:
    body = {**WORK, "calls": 5, "modes": ["eager", "compiled"]}
    answer = module.http.post(COMPARE, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["batch_size"] == 4
    eager, compiled = answer.json()["results"]
    # The fake's calls take 44 µs each, and its requests at least 4 ms.
    assert eager["median_seconds"] == pytest.approx(5 * 40e-6)
    assert eager["dispatch_seconds"] + eager["kernel_seconds"] == pytest.approx(5 * 40e-6)
    assert compiled["speedup"] == {"vs": "eager", "ratio": 1.0, "low": 1.0, "high": 1.0}
    assert (eager["text_equal"], compiled["text_equal"]) == (None, None)
    assert compiled["parity"].keys() == {field.name for field in msgspec.structs.fields(Parity)}
    assert compiled["parity"]["passed"]
    assert module.moved()['requests_total{mode="compiled",outcome="ok"}'] == 9  # one of them sampled


def test_a_comparison_takes_no_prompts_and_only_served_batches(module: Front) -> None:
    assert refused(module.http.post(COMPARE, json={**WORK, "prompts": ["a"]}), 422)["param"] == "prompts"
    assert refused(module.http.post(COMPARE, json={"batch_size": 2}), 422)["param"] == "batch_size"
    assert refused(module.http.post(COMPARE, json={}), 422)["param"] == "batch_size"


def test_advice_and_auto_go_by_the_calls() -> None:
    with running({"model": MODULE}) as front:
        front.await_ready()
        unknown = refused(front.http.get("/v1/advice?batch_size=4"), 409)
        assert 'POST /v1/compare with "batch_size": 4' in unknown["message"]
        assert front.http.post(COMPARE, json=WORK).status_code == 200
        found = front.http.get("/v1/advice?batch_size=4").json()
        assert (found["mode"], found["state"]) == ("inference_mode", "equivalent")
        assert found["device_bound_index"] == pytest.approx(0.4)
        assert call(front, "auto").json()["mode"]["picked"] == "inference_mode"


def timing(
    period_seconds: float | None, total_seconds: float, *, mode: str, ended: int, size: str | None = None
) -> RequestTiming:
    """Of a request with 10 calls in `period_seconds`, that took `total_seconds` in all."""
    work = ForwardWork(batch_size=4, size=size, calls=10)
    job = Job(mode=mode, forward=work, sent_ns=0, deadline_ns=10**12)
    forward = PhaseTimings(steps=10, wall_seconds=period_seconds, period_seconds=period_seconds)
    timings = Timings(
        queue_seconds=0.0, forward=forward, tokenise_seconds=0.0, involuntary_switches=0,
        dispatch_source=None, kernel_source=None, taken_ns=0, first_token_ns=None, done_ns=ended * 10**9,
    )  # fmt: skip
    done = Outcome(
        id="a", mode=mode, effective=mode, reason=None, kind="ok", batch_size=4, batch_bucket=4,
        timings=timings,
    )  # fmt: skip
    return add_up(job, done, 0, 0, round(total_seconds * 1e9))


def test_a_mode_with_shorter_calls_is_advised_though_its_requests_take_as_long() -> None:
    served = ServedRequests(FORWARD)
    for number in range(16):
        mode, period = (("eager", 2e-3), ("compiled", 1e-3))[number % 2]
        served.observe(timing(period, 0.5, mode=mode, ended=number))
    advice = served.advise(4, [1, 4], ("eager", "compiled"))
    assert (advice.mode, advice.speedup.value) == ("compiled", pytest.approx(2.0))
    assert "a call (10 calls in a row on its own inputs) is 2.00" in advice.reason


def test_advice_is_of_the_first_size_alone() -> None:
    served = ServedRequests(FORWARD)
    for number in range(48):
        mode = ("eager", "compiled")[number % 2]
        long = number >= 16
        period = {"eager": 2e-3, "compiled": 9e-3 if long else 1e-3}[mode]
        served.observe(timing(period, 0.5, mode=mode, ended=number, size="512" if long else None))
    advice = served.advise(4, [1, 4], ("eager", "compiled"))
    assert (advice.mode, advice.speedup.value) == ("compiled", pytest.approx(2.0))


def test_where_instrumentation_is_off_whole_requests_are_compared_and_the_reason_says_so() -> None:
    served = ServedRequests(FORWARD)
    for number in range(16):
        mode, seconds = (("eager", 0.2), ("compiled", 0.1))[number % 2]
        served.observe(timing(None, seconds, mode=mode, ended=number))
    advice = served.advise(4, [1, 4], ("eager", "compiled"))
    assert (advice.mode, advice.speedup.value) == ("compiled", pytest.approx(2.0))
    assert "a whole request (10 calls in a row on its own inputs) is 2.00" in advice.reason


def test_a_job_is_of_the_workload_that_its_fields_say() -> None:
    assert of_job(Job(mode="eager", forward=ForwardWork(batch_size=1), sent_ns=0, deadline_ns=0)) is FORWARD
    assert of_job(Job(mode="eager", prompts=["a"], sent_ns=0, deadline_ns=0)) is GENERATE


def test_metrics_have_the_phase_forward_alone_and_nothing_of_tokens(module: Front) -> None:
    before = module.series()
    assert not [name for name in before if "token" in name or 'phase="decode"' in name or "prefill" in name]
    assert call(module, calls=3).status_code == 200
    assert command(module, "!profiled", calls=2).status_code == 200
    moved = module.moved()
    labels = '{batch="4",mode="eager",phase="forward"}'
    assert moved[f"step_batch_wall_seconds_count{labels}"] == 3
    assert moved[f"step_batch_period_seconds_sum{labels}"] == pytest.approx(3 * 44e-6)
    assert moved['step_batch_rows_sum{batch="4",mode="eager"}'] == 12
    assert moved['batch_size_sum{mode="eager"}'] == 5
    series = module.series()
    assert series['device_bound_index{batch="4",mode="eager"}'] == pytest.approx(0.4)
    assert series['step_operators{mode="eager",phase="forward"}'] == 120
    assert series['samples_total{batch="4",mode="eager",phase="forward",side="kernel"}'] == 40
    text = module.http.get("/metrics").text
    assert "# HELP launchbound_device_bound_index Kernel share of a call" in text
    assert "# HELP launchbound_step_batch_rows Samples per call" in text


def test_on_cuda_the_index_is_of_the_calls() -> None:
    with running({"model": MODULE}, device="cuda") as front:
        front.await_ready()
        timings = call(front, calls=2).json()["timings"]
        assert timings["forward"]["device_span_seconds"] == pytest.approx(2 * 36e-6)
        assert front.series()['step_dispatch_seconds_count{mode="eager",phase="forward"}'] == 2


def test_the_log_has_the_calls_and_no_tokens(module: Front) -> None:
    with logged() as lines:
        call(module, calls=3)
        until(lambda: lines.objects("request"), "the line")
    (line,) = lines.objects("request")
    assert (line["batch_size"], line["calls"], line["outcome"]) == (4, 3, "ok")
    assert (line["prompt_tokens"], line["completion_tokens"]) == (None, None)
    with logged("text") as texts:
        call(module, calls=3)
        until(lambda: texts.lines, "the line")
    assert "batch 4   calls 3" in texts.lines[0]
    assert "tokens" not in texts.lines[0]


def test_the_log_of_the_start_says_what_the_module_is_called_on() -> None:
    with logged("text") as lines, running({"model": MODULE}) as front:
        front.await_ready()
    (line,) = (line for line in lines.lines if MODULE in line)
    assert line.endswith("1 parameters · float32 · called on x float32 [batch, 2]")


def test_modes_have_splits_of_the_phase_forward(module: Front) -> None:
    answer = module.http.get("/v1/modes").json()
    assert {split["phase"] for mode in answer["modes"] for split in mode["splits"]} == {"forward"}
    assert (answer["engine"]["workload"], answer["engine"]["inputs"]) == ("forward", "x float32 [batch, 2]")
