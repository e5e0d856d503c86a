"""A metrics page as a service on a GPU shows it, made by the service's own code from made-up accounts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, Gauge

from service.front.metrics.recorder import Metrics
from service.front.request_timing import RequestTiming, add_up
from service.records import (
    PHASES,
    DeviceTime,
    EngineStatus,
    Job,
    KernelTime,
    ModeStatus,
    Outcome,
    Output,
    Parity,
    PhaseTimings,
    ProfilerCost,
    StepProfile,
    Timings,
)

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

MODES = ("eager", "reduce-overhead")
MEMORY = {
    f"{kind}_{stat}": size
    for kind, size in {
        "allocated": 1 << 30,
        "reserved": 3 << 30,
        "active": 2 << 30,
        "inactive_split": 1 << 20,
    }.items()
    for stat in ("current", "peak")
}


class GpuPage:
    """Counts requests in both modes each time `advance` is called."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._metrics = Metrics(registry, list(MODES), [1, 4], {"version": "0", "commit": "0"})
        self._compiled: list[float] = []
        self._tight = 0
        self._start()
        utilisation = Gauge("DCGM_FI_DEV_GPU_UTIL", "As NVIDIA's exporter.", ["gpu"], registry=registry)
        utilisation.labels("0").set(93)

    def advance(self) -> None:
        """Two more requests per mode, one of them profiled; one that ran as something else, one compilation.

        Memory is tight: an allocation is tried again, and another fails.
        """
        self._compiled = [*self._compiled, 12.0]
        self._tight += 1
        self._metrics.engine(_engine(self._tight))
        self._metrics.mode(_status("reduce-overhead", self._compiled))
        for mode in MODES:
            self._metrics.observe(_account(mode, mode))
            self._metrics.observe(_account(mode, mode, _profile(mode)))
        self._metrics.observe(_account("reduce-overhead", "compiled"))

    def restart(self) -> None:
        """The engine ends, and the next one is ready at once."""
        self._metrics.engine_lost()
        self._start()

    def _start(self) -> None:
        self._compiled, self._tight = [], 0
        self._metrics.engine(_engine(0))
        for mode in MODES:
            self._metrics.mode(_status(mode, []))
        self._metrics.render("", Counter(), waiting=0)

    def answer(self, environ: WSGIEnvironment, start: StartResponse) -> list[bytes]:
        """Answer a scrape."""
        body, kind = self._metrics.render(environ.get("HTTP_ACCEPT", ""), Counter(), waiting=0)
        start("200 OK", [("Content-Type", kind)])
        return [body]


@contextmanager
def served(app: WSGIApplication) -> Iterator[str]:
    """Answer scrapes by `app` on a free port of loopback; yields "host:port"."""

    class Quiet(WSGIRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with make_server("127.0.0.1", 0, app, handler_class=Quiet) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def _engine(tight: int) -> EngineStatus:
    sizes = {"parameters": 3_000_000, "layers": 6, "width": 192, "context": 512, "prefill_chunk": 64}
    machine = {"device": "cuda", "device_name": "a GPU", "torch": "2.13.0", "cuda": "13.0", "threads": 1}
    fields: dict[str, Any] = {**sizes, **machine, "pid": 1, "model": "tiny", "model_hash": "0"}
    fields |= {"dtype": "bfloat16", "cpus": [0], "warm": True, "batch_buckets": [1, 4], "modes": list(MODES)}
    return EngineStatus(**fields, memory={**MEMORY, "alloc_retries": tight, "ooms": tight})


def _status(mode: str, compile_seconds: list[float]) -> ModeStatus:
    parity = Parity(
        passed=True,
        max_abs_logit_difference=0.01,
        tolerance=0.1,
        positions=9,
        differing_tokens=0,
        near_ties=0,
    )
    attached = ProfilerCost(
        ratio=1.04, low=1.02, high=1.06, rounds=8, before_seconds=60e-6, after_seconds=62.4e-6
    )
    compiles = mode != "eager"
    return ModeStatus(
        mode=mode,
        removes="",
        state="ready",
        effective=mode,
        cache="cold" if compiles else None,
        warmup_seconds=24.0 if compiles else 0.5,
        compile_seconds=compile_seconds,
        parity=parity,
        graph_captures=6 if mode == "reduce-overhead" else 0,
        device_times=[
            DeviceTime(queued=16, upper_bound=False, **_decode(batch, seconds))
            for batch, seconds in ((1, 95e-6), (4, 140e-6))
        ],
        kernel_times=[KernelTime(**_decode(batch, seconds)) for batch, seconds in ((1, 90e-6), (4, 130e-6))],
        profiler_cost=attached,
    )


def _decode(batch: int, seconds: float) -> dict[str, Any]:
    return {
        "phase": "decode", "batch": batch, "seconds": seconds, "low": seconds, "high": seconds, "samples": 8
    }  # fmt: skip


def _phase(steps: int, dispatch: float, span: float, kernel: float) -> PhaseTimings:
    wait = max(span - dispatch, 0.0)
    return PhaseTimings(
        steps=steps,
        wall_seconds=steps * (dispatch + wait),
        dispatch_seconds=steps * dispatch,
        device_span_seconds=steps * span,
        kernel_seconds=steps * kernel,
        sync_wait_seconds=steps * wait,
        period_seconds=steps * (dispatch + wait + 20e-6),
        dispatch_steps_seconds=[dispatch] * steps,
        device_span_steps_seconds=[span] * steps,
        period_steps_seconds=[dispatch + wait + 20e-6] * steps,
    )


def _profile(mode: str) -> list[StepProfile]:
    operators, launches = (190.0, 180.0) if mode == "eager" else (1.0, 1.0)
    counts = {"operators": operators, "copies": 0.0, "kernels": max(launches, 60.0), "launches": launches}
    return [StepProfile(phase=phase, steps=1, **counts) for phase in PHASES]


def _account(mode: str, effective: str, profile: list[StepProfile] | None = None) -> RequestTiming:
    """A request of one prefill and seven decode steps; eager issues slowly, a graph replay does not."""
    dispatch, span = (900e-6, 950e-6) if effective == "eager" else (60e-6, 210e-6)
    prefill, decode = _phase(1, dispatch, 2 * span, 300e-6), _phase(7, dispatch, span, 180e-6)
    engine_ns = round((prefill.wall_seconds + decode.wall_seconds) * 1e9)
    job = Job(id="0", mode=mode, prompts=["x"], max_new_tokens=8, sent_ns=10_000, deadline_ns=10**12)
    timings = Timings(
        queue_seconds=0.0,
        prefill=prefill,
        decode=decode,
        tokenise_seconds=20e-6,
        involuntary_switches=0,
        dispatch_source="measured",
        kernel_source="sampled",
        taken_ns=100_000,
        first_token_ns=2_000_000,
        done_ns=200_000 + engine_ns,
    )
    outcome = Outcome(
        id="0",
        mode=mode,
        effective=effective,
        reason=None,
        kind="ok",
        batch_size=1,
        batch_bucket=1,
        prompt_tokens=4,
        outputs=[Output(text="", token_ids=[0] * 8, finish_reason="length")],
        timings=timings,
        profile=profile,
    )
    return add_up(job, outcome, 0, 300_000 + engine_ns, 310_000 + engine_ns)
