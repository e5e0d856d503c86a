"""A stand-in for the service in tests of the load side: same HTTP, made-up timings, and it can misbehave."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any

from service.modes import AUTO
from service.records import METHOD

STEP_SECONDS = {
    "eager": (0.0016, 0.0005), "no_grad": (0.0013, 0.0005), "inference_mode": (0.0011, 0.0005),
    "compiled": (0.0003, 0.0004), "reduce-overhead": (0.00026, 0.0004),
}  # fmt: skip
"""Dispatch, and kernel per row, of one step."""


@dataclass
class Script:
    """How this instance behaves. After `fail_after` requests all get 500.

    `odd_mode` writes other texts than the rest; `auto` runs `compiled`. With `service_seconds` requests run
    one after another and take at least so long.
    `replica`: the name of the replica that a proxy has answer. With `module` it serves one, whose
    answers have up to `short` calls less than asked for.
    """

    states: list[str] = field(default_factory=lambda: ["ready"])
    failed_mode: str | None = None
    failed_because: str | None = None
    in_parity: bool = True
    api_key: str | None = None
    fail_after: int | None = None
    largest_bucket: int = 16
    device: str = "cpu"
    odd_mode: str | None = None
    service_seconds: float = 0.0
    replica: str | None = None
    module: bool = False
    short: int = 0
    engine: Lock = field(default_factory=Lock)
    polls: int = 0
    ran: Counter[str] = field(default_factory=Counter)
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)


AS_COMPILED_CPP = {"effective": "compiled-cpp", "reason": "a CPU has no CUDA graphs"}


def mode_status(mode: str, state: str, in_parity: bool = True) -> dict[str, Any]:
    compiled = mode in ("compiled", "reduce-overhead")
    parity = {
        "passed": in_parity, "max_abs_logit_difference": 2e-6, "tolerance": 1e-4, "positions": 96,
        "differing_tokens": 0, "near_ties": 0,
    }  # fmt: skip
    return {
        "mode": mode, "removes": "something", "state": state, "requested": mode, "effective": mode,
        "reason": None, "detail": None, "cache": "cold" if compiled else None,
        "warmup_seconds": 41.5 if compiled else 1.2, "compile_seconds": [12.0, 11.0] if compiled else [],
        "graph_breaks": 0, "recompiles": 0, "splits": [], "parity": parity if state == "ready" else None,
    } | (AS_COMPILED_CPP if mode == "reduce-overhead" else {})  # fmt: skip


def engine_status(largest_bucket: int = 16) -> dict[str, Any]:
    return {
        "pid": 1, "model": "tiny", "parameters": 2_900_000, "layers": 6, "width": 192, "context": 512,
        "prefill_chunk": 64, "batch_buckets": [1, 4, largest_bucket], "model_hash": "0123456789ab",
        "device": "cpu", "device_name": "a CPU", "dtype": "float32", "torch": "2.13.0", "cuda": None,
        "threads": 1, "cpus": [], "modes": list(STEP_SECONDS), "memory": None, "warm": True,
    }  # fmt: skip


MODULE = {
    "workload": "forward", "model": "ranker.py:build", "layers": 0, "width": 0, "context": 0,
    "prefill_chunk": 0, "inputs": "x float32 [batch, 16]",
}  # fmt: skip
"""What an engine says of a module, in place of a language model's own."""


def service_itself() -> dict[str, Any]:
    """What the service says of itself: another machine and commit than those of the tests."""
    return {
        "version": "0.1.0", "commit": "fedcba987654", "dirty": False, "method": METHOD, "machine": "x86_64",
        "system": "Linux 6", "distribution": "a distribution", "cpu": "the service's CPU", "cores": 2,
        "memory_bytes": 2**33, "governor": None, "cpu_megahertz": None, "gpus": [], "python": "3.11.7",
        "load_average": [0.1, 0.1, 0.1],
    }  # fmt: skip


def phase(mode: str, batch: int, steps: int) -> dict[str, Any]:
    dispatch, kernel = STEP_SECONDS[mode][0], STEP_SECONDS[mode][1] * batch
    return {
        "steps": steps,
        "wall_seconds": steps * (dispatch + kernel),
        "dispatch_seconds": steps * dispatch,
        "device_span_seconds": None,
        "kernel_seconds": steps * kernel,
        "sync_wait_seconds": None,
        "period_seconds": steps * (dispatch + kernel) * 1.02,
    }


AROUND_SECONDS = 0.002
"""What a request of a module takes beside its calls."""


def timings_of_calls(mode: str, batch: int, calls: int) -> dict[str, Any]:
    forward = phase(mode, batch, calls)
    alike = {
        name: forward[name] for name in forward if name not in ("steps", "wall_seconds", "period_seconds")
    }
    return {
        "queue_seconds": 0.0001, **alike, "stall_seconds": None, "other_seconds": AROUND_SECONDS,
        "border_seconds": 0.0001, "front_seconds": 0.00005, "involuntary_switches": 0,
        "total_seconds": forward["wall_seconds"] + AROUND_SECONDS + 0.0001, "effective_batch": float(batch),
        "forward": forward, "kernels": None, "launches": None, "profiled": False, "sampled": False,
        "sources": {"dispatch": "sampled", "kernel": "sampled", "steps": "own"},
    }  # fmt: skip


def timings(mode: str, batch: int, tokens: int) -> dict[str, Any]:
    dispatch, kernel = STEP_SECONDS[mode][0], STEP_SECONDS[mode][1] * batch
    total = tokens * (dispatch + kernel) + 0.0004
    return {
        "queue_seconds": 0.0001, "dispatch_seconds": tokens * dispatch, "device_span_seconds": None,
        "kernel_seconds": tokens * kernel, "sync_wait_seconds": None, "other_seconds": 0.0003,
        "border_seconds": 0.0001, "front_seconds": 0.00005, "tokenise_seconds": 0.0001,
        "total_seconds": total, "time_to_first_token_seconds": dispatch + kernel, "involuntary_switches": 0,
        "prefill": phase(mode, batch, 1), "decode": phase(mode, batch, tokens - 1), "kernels": None,
        "launches": None,
        "sources": {"dispatch": "sampled", "kernel": "sampled"}, "profiled": False,
    }  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    script: Script

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def _reply(self, status: int, document: object, text: str | None = None) -> None:
        content = (json.dumps(document) if text is None else text).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json" if text is None else "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(content)))
        if self.script.replica is not None:
            self.send_header("X-Launchbound-Replica", self.script.replica)
        self.end_headers()
        self.wfile.write(content)

    def _refuse(self, status: int, kind: str, message: str) -> None:
        self._reply(status, {"error": {"type": kind, "message": message, "param": None}})

    def do_GET(self) -> None:
        script = self.script
        if self.path == "/metrics":
            with script.lock:
                lines = ["# TYPE launchbound_requests_total counter"]
                lines += [
                    f'launchbound_requests_total{{mode="{mode}",outcome="ok"}} {count}'
                    for mode, count in script.ran.items()
                ]
            return self._reply(200, None, "\n".join(lines) + "\n")
        if script.api_key and self.headers.get("Authorization") != f"Bearer {script.api_key}":
            return self._refuse(401, "unauthorised", "no key")
        if self.path == "/v1/modes":
            with script.lock:
                state = script.states[min(script.polls, len(script.states) - 1)]
                script.polls += 1
            modes = [
                mode_status(mode, state, script.in_parity)
                | ({"state": "failed", "detail": script.failed_because} if mode == script.failed_mode else {})
                for mode in STEP_SECONDS
            ]
            own = {"device": script.device, "dtype": "float32", "batching": "off", "linears": None}
            own |= MODULE if script.module else {}
            engine = engine_status(script.largest_bucket) | own if state == "ready" else None
            return self._reply(200, {"modes": modes, "engine": engine, "service": service_itself()})
        return self._refuse(404, "not_found", self.path)

    def do_POST(self) -> None:
        script = self.script
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        requested = self.path.split("/")[3]
        mode = "compiled" if requested == AUTO else requested
        with script.lock:
            script.headers.append({name.lower(): value for name, value in self.headers.items()})
            script.bodies.append((requested, body))
            script.ran[mode] += 1
            fails = script.fail_after is not None and sum(script.ran.values()) > script.fail_after
        if script.service_seconds:
            with script.engine:
                Event().wait(script.service_seconds)
        if fails:
            return self._refuse(500, "internal", "the engine broke")
        if script.module:
            return self._reply(200, self._called(requested, mode, body))
        batch, tokens = len(body["prompts"]), body["max_new_tokens"]
        effective = "compiled-cpp" if mode == "reduce-overhead" else mode
        text = "y" if mode == script.odd_mode else "x"
        outputs = [{"text": text, "finish_reason": "length", "completion_tokens": tokens}] * batch
        ran = {"requested": requested, "effective": effective, "reason": None}
        answer = {
            "id": self.headers["X-Request-ID"], "model": "tiny", "device": "cpu", "batch_size": batch,
            "batch_bucket": batch, "outputs": outputs,
            "mode": ran | ({"picked": mode} if requested == AUTO else {}),
            "usage": {"prompt_tokens": 6 * batch, "completion_tokens": tokens * batch, "total_tokens": 0},
            "timings": timings(mode, batch, tokens) | {"profiled": bool(body.get("profile"))},
        }  # fmt: skip
        return self._reply(200, answer)

    def _called(self, requested: str, mode: str, body: dict[str, Any]) -> dict[str, Any]:
        assert self.path == f"/v1/modes/{requested}/forward"
        batch, calls = body["batch_size"], body["calls"]
        effective = "compiled-cpp" if mode == "reduce-overhead" else mode
        return {
            "id": self.headers["X-Request-ID"], "model": MODULE["model"], "device": "cpu",
            "mode": {"requested": requested, "effective": effective, "reason": None}, "batch_size": batch,
            "calls": calls, "outputs": None,
            "timings": timings_of_calls(mode, batch, max(1, calls - self.script.short)),
        }  # fmt: skip


@contextmanager
def fake_service(script: Script) -> Iterator[str]:
    """Serves on a free port of this machine while the block runs; yields the address."""
    handler = type("Handler", (_Handler,), {"script": script})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
