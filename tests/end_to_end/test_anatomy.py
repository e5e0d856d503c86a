"""The real service through every study that HTTP offers: the engine is afterwards as it was before."""

from __future__ import annotations

import gzip
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from tests.support.serving import until
from tests.support.whole_service import WholeService

MODES = ("eager", "compiled")
SETTLED_BYTES = 8 * 2**20
"""How far an engine's resident memory may wander by itself: allocator and page granularity."""

OPERATORS = "/v1/studies/operators"
SHORT: dict[str, dict[str, Any]] = {
    "operator": {"size": 8, "rounds": 6},
    "layers": {"operations": ["add"], "sizes": [8], "rounds": 6},
    "tape": {"expression": "gate", "mode": "eager"},
    "timeline": {"mode": "eager"},
    "budget": {"modes": ["eager"], "rounds": 6},
    "memory": {"mode": "eager"},
    "rms-norm": {"rows": 2, "width": 8, "rounds": 6},
}
"""The other studies, each as short as it can be."""

STUDIES: list[tuple[str, dict[str, Any]]] = [
    *((OPERATORS, {"mode": mode, "phase": phase}) for mode in MODES for phase in ("decode", "prefill")),
    *((f"/v1/studies/{name}", body) for name, body in SHORT.items()),
    *((f"/v1/probes/{name}", {}) for name in ("graph-break", "thread-change", "custom-op")),
]
"""Of the probes one that compiles, one that changes the process and one that registers an operator; that each
leaves no trace is tested with the probes."""


@pytest.fixture
def client(service: WholeService) -> httpx.Client:
    return service.http


def generate(client: httpx.Client, mode: str) -> dict[str, Any]:
    body = {"prompts": ["def mean(values):\n"], "max_new_tokens": 16, "ignore_eos": True}
    answer = client.post(f"/v1/modes/{mode}/generate", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def compilations(client: httpx.Client) -> dict[str, float]:
    counted = ("launchbound_compile_seconds_count{", "launchbound_recompiles_total{")
    lines = client.get("/metrics").text.splitlines()
    found = {name: float(value) for name, value in (x.rsplit(" ", 1) for x in lines if x.startswith(counted))}
    assert found['launchbound_compile_seconds_count{mode="compiled"}'] > 0
    assert 'launchbound_recompiles_total{mode="compiled"}' in found
    return found


def engine_now(client: httpx.Client) -> tuple[dict[str, Any], int]:
    """What must not change, after a request in every mode; and the engine's resident bytes."""
    outputs = {mode: generate(client, mode)["outputs"] for mode in MODES}
    listed = client.get("/v1/modes").json()
    engine = psutil.Process(listed["engine"]["pid"])
    # The requests above are sampled, too.
    modes = [{key: mode[key] for key in mode if key != "splits"} for mode in listed["modes"]]
    fixed = {
        "outputs": outputs,
        "modes": modes,
        "engine": listed["engine"],
        "threads": engine.num_threads(),
        "cpus": engine.cpu_affinity(),
        "compiled": compilations(client),
    }
    return fixed, engine.memory_info().rss


@pytest.mark.parametrize(("path", "body"), STUDIES, ids=str)
def test_the_engine_is_as_before_after(client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    before, bytes_before = engine_now(client)
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    after, bytes_after = engine_now(client)
    assert after == before
    assert abs(bytes_after - bytes_before) < SETTLED_BYTES


def test_a_request_during_a_study_waits_and_the_wait_is_its_queue(client: httpx.Client) -> None:
    with ThreadPoolExecutor(1) as threads:
        study = threads.submit(client.post, OPERATORS, json={"mode": "eager"})
        until(lambda: client.get("/health/live").json()["engine_paused"], "the engine's pause")
        began = time.monotonic()
        timings = generate(client, "eager")["timings"]
        waited = time.monotonic() - began
        assert study.result().status_code == 200
    assert timings["queue_seconds"] > 0.5 * waited
    assert timings["queue_seconds"] == pytest.approx(timings["total_seconds"], rel=0.5)
    parts = [timings[f"{part}_seconds"] for part in ("queue", "dispatch", "kernel", "other")]
    assert sum(parts) == pytest.approx(timings["total_seconds"])
    assert generate(client, "eager")["timings"]["queue_seconds"] < timings["queue_seconds"]


def test_an_anatomy_has_the_fields_of_the_contract(client: httpx.Client) -> None:
    found = {mode: client.post(OPERATORS, json={"mode": mode}).json() for mode in MODES}
    assert {mode: client.get(f"/v1/modes/{mode}/anatomy").json() for mode in MODES} == found
    for finding in found.values():
        assert {"operators", "kernels", "launches", "syncs", "copies"} <= set(finding)
        assert all(
            {"name", "overload", "keys", "shapes", "host_seconds"} <= set(row) for row in finding["operators"]
        )
    compiled = found["compiled"]
    assert compiled["graphs"] >= 1
    assert compiled["generated_code"]
    assert {"graph_breaks", "guards", "recompiles"} <= set(compiled)


def test_a_real_study_comes_as_events_with_its_rounds_counted(client: httpx.Client) -> None:
    headers = {"Accept": "text/event-stream"}
    answer = client.post("/v1/studies/operator", json={"size": 4, "rounds": 6}, headers=headers)
    data = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    *progress, last = data
    assert [(one["done"], one["total"]) for one in progress if one["total"]] == [(n, 6) for n in range(6)]
    assert last["finding"]["calls"][0]["operator"] == "aten::add.Tensor"
    assert last["finding"] == client.get(f"/v1/studies/{last['id']}").json()


def test_a_timelines_trace_is_downloaded_and_names_no_place_of_the_machine(client: httpx.Client) -> None:
    answer = client.post("/v1/studies/timeline", json={"mode": "eager"})
    (name,) = answer.json()["files"]
    assert "/" not in name
    file = client.get(f"{answer.headers['location']}/files/{name}")
    trace = json.loads(gzip.decompress(file.content))
    assert any(event["ph"] == "X" and event["name"].startswith("aten::") for event in trace["traceEvents"])
