"""The real service, front and engine, through all five modes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from service.front.launch import launched
from service.modes import MODES, default_modes
from tests.support.serving import until
from tests.support.whole_service import OPTIONS, START_SECONDS, WholeService, generate, statuses


@pytest.fixture
def client(service: WholeService) -> httpx.Client:
    return service.http


def test_ready_modes_serve_while_others_compile_and_those_answer_503_with_what_is_ready(
    service: WholeService,
) -> None:
    eager, refused, ready = service.while_compiling
    assert eager.status_code == 200
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0
    assert "eager" in refused.json()["error"]["message"]
    assert ready.status_code == 503


def test_every_mode_is_ready_in_parity_and_says_what_it_is(client: httpx.Client) -> None:
    for name, status in statuses(client).items():
        assert status["state"] == "ready"
        assert status["parity"]["passed"]
        assert status["parity"]["differing_tokens"] == 0
        assert status["warmup_seconds"] > 0
        assert status["effective"] == MODES[name].cpu.name
        assert status["cache"] == ("cold" if MODES[name].cpu.compile else None)


def test_greedy_output_is_the_same_in_all_five_modes(client: httpx.Client) -> None:
    texts = {mode: [o["text"] for o in generate(client, mode).json()["outputs"]] for mode in default_modes()}
    assert len(texts) == 5
    assert all(text == texts["eager"] for text in texts.values()), texts


@pytest.mark.parametrize("mode", default_modes())
def test_the_parts_sum_to_the_total_and_none_is_negative(client: httpx.Client, mode: str) -> None:
    timings = generate(client, mode).json()["timings"]
    parts = [timings[f"{part}_seconds"] for part in ("queue", "dispatch", "kernel", "other")]
    assert all(part >= 0 for part in parts)
    assert sum(parts) == pytest.approx(timings["total_seconds"])
    assert timings["sources"]["dispatch"] == timings["sources"]["kernel"] == "sampled"
    assert {timings[phase]["samples_of"] for phase in ("prefill", "decode")} <= {"request", "traffic"}
    assert timings["decode"]["steps"] == 23
    assert timings["prefill"]["steps"] == 2
    assert timings["sync_wait_seconds"] is timings["device_span_seconds"] is timings["launches"] is None


def test_an_idle_engine_has_no_queue_and_the_way_to_it_is_counted_elsewhere(client: httpx.Client) -> None:
    timings: list[dict[str, Any]] = []

    def found_it_idle() -> bool:
        # Right after a request the engine may still tell what that has changed.
        timings.append(generate(client, "eager", max_new_tokens=1).json()["timings"])
        return bool(timings[-1]["queue_seconds"] == 0.0)

    until(found_it_idle, "a request that finds the engine idle")
    assert all(0 < t["border_seconds"] < t["other_seconds"] for t in timings)


def test_a_profiled_request_leaves_a_trace_and_no_latency(client: httpx.Client) -> None:
    def observed() -> float:
        lines = client.get("/metrics").text.splitlines()
        name = 'launchbound_request_duration_seconds_count{mode="eager"}'
        return next(float(line.split()[-1]) for line in lines if line.startswith(name))

    before = observed()
    answer = generate(client, "eager", profile=True)
    assert answer.status_code == 200
    assert observed() == before
    newest = client.get("/v1/traces").json()["traces"][0]
    assert newest["request_id"] == answer.json()["id"]
    assert newest["mode"] == "eager"
    assert newest["operators"][0]["self_seconds"] > 0
    trace = client.get(f"/v1/traces/{newest['id']}").json()
    assert any(event.get("name") == "aten::mm" for event in trace["traceEvents"])
    assert 'launchbound_step_operators{mode="eager",phase="decode"}' in client.get("/metrics").text
    missing = client.get("/v1/traces/nothing")
    assert missing.status_code == 404
    assert missing.json()["error"]["type"] == "not_found"


def test_a_second_start_finds_its_compiled_code(
    service: WholeService, shared_code: dict[str, str], tmp_path: Path
) -> None:
    assert statuses(service.http)["compiled"]["cache"] == "cold"
    options = [*OPTIONS, "--modes=compiled"]
    with launched(options, tmp_path / "log", shared_code) as url, httpx.Client(base_url=url) as second:
        until(lambda: second.get("/health/ready").status_code == 200, "the second start", START_SECONDS)
        assert statuses(second)["compiled"]["cache"] == "warm"
