"""The service under test over plain HTTP: modes, readiness, event streams, metrics and their scrapes."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Literal, get_args
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from loadtests.plan.cells import BASELINE, Plan
from service.modes import doubles
from service.workloads import FORWARD, WORKLOADS, Workload

COMPILE_COUNTERS = (
    "launchbound_recompiles_total", "launchbound_graph_breaks_total", "launchbound_compile_seconds_count",
)  # fmt: skip

REPLICA_HEADER = "X-Launchbound-Replica"
"""Of answers that came through Ray Serve's proxy: the name of the replica that answered."""


def linear_layout(engine: Mapping[str, Any]) -> str | None:
    """How linear weights lie in the memory of `engine`, of GET /v1/modes; None where they are not laid out.

    What candidates took when it was chosen stands beside it, and differs from start to start.
    """
    layout: str | None = (engine.get("linears") or {}).get("layout")
    return layout


def workload_of(engine: Mapping[str, Any]) -> Workload:
    """What the service of `engine` does with a request; one that does not say it completes prompts."""
    return WORKLOADS[engine.get("workload", "generate")]


class TargetError(RuntimeError):
    """The service cannot be used for a sweep; the message names the remedy."""


class ModeFailed(TargetError):
    """A mode of the plan failed or is out of parity: a failed check, not a usage error."""


class RequestRefused(TargetError):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Unreachable(TargetError):
    """No connection to the address."""


class Target:
    """A running service at `url`; `api_key` is sent as a bearer token."""

    def __init__(self, url: str, api_key: str | None = None, timeout_seconds: float = 10.0) -> None:
        """Raises TargetError where `url` is not an HTTP address."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise TargetError(f"'{url}' is not an address: give it as http://127.0.0.1:8000")
        self.url = url.rstrip("/")
        self.headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout_seconds = timeout_seconds
        # Measure the direct connection, never a proxy.
        self._opener = build_opener(ProxyHandler({}))
        self.replica: str | None = None
        """The replica that Serve's proxy had answer last; None where the address is one service's own."""

    @property
    def is_local(self) -> bool:
        """Whether the service is on this machine, so that what this machine shows is true of it."""
        return urlsplit(self.url).hostname in ("127.0.0.1", "localhost", "::1")

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of GET `path`, made now; an error is returned, not raised. Raises Unreachable."""
        return self._answer(Request(self.url + path, headers={**self.headers, "Cache-Control": "no-cache"}))

    def post(self, path: str, body: Mapping[str, object], timeout_seconds: float) -> tuple[int, str]:
        """Status and body of POST `path` with `body` as JSON, as `get`."""
        return self._answer(self._posting(path, body), timeout_seconds)

    def _answer(self, request: Request, timeout_seconds: float | None = None) -> tuple[int, str]:
        try:
            with self._open(request, timeout_seconds) as answer:
                self.replica = answer.headers.get(REPLICA_HEADER)
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode(errors="replace")

    def _posting(self, path: str, body: Mapping[str, object]) -> Request:
        headers = {**self.headers, "Content-Type": "application/json"}
        return Request(self.url + path, json.dumps(body).encode(), headers)

    @contextmanager
    def _open(self, request: Request, timeout_seconds: float | None = None) -> Iterator[HTTPResponse]:
        """The response. Raises HTTPError for an error status, Unreachable where it breaks off."""
        try:
            with self._opener.open(request, timeout=timeout_seconds or self._timeout_seconds) as response:
                yield response
        except HTTPError:
            raise
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise Unreachable(f"nothing answers at {self.url} ({reason}): start the service") from error

    def stream(self, path: str, body: Mapping[str, object]) -> Iterator[tuple[str, Any]]:
        """The events of POST `path` with `body` as JSON, (name, data) each, as they arrive.

        Raises RequestRefused for an error status, Unreachable without a response or where it breaks off.
        """
        try:
            with self._open(self._posting(path, body)) as response:
                yield from _events(response)
        except HTTPError as error:
            raise RequestRefused(error.code, _message(error.read().decode(errors="replace"))) from error

    def modes(self) -> dict[str, Any]:
        """The document of GET /v1/modes. Raises TargetError where it is refused or malformed."""
        status, body = self.get("/v1/modes")
        if status == 401:
            raise TargetError(f"{self.url} requires an API key: set LAUNCHBOUND_API_KEY to the service's key")
        try:
            if status == 200 and isinstance((document := json.loads(body))["modes"], list):
                return dict(document)
        except (ValueError, KeyError, TypeError):
            pass
        raise TargetError(f"GET {self.url}/v1/modes answered {status} {body[:200]!r}: is this a launchbound?")

    def metrics(self) -> str:
        """The text of GET /metrics. Raises TargetError for any other status than 200."""
        status, body = self.get("/metrics")
        if status != 200:
            raise TargetError(f"GET {self.url}/metrics answered {status}: {body[:200]!r}")
        return body


def _events(lines: Iterable[bytes]) -> Iterator[tuple[str, Any]]:
    """Server-sent events from their lines; ours have one line of JSON each."""
    name = ""
    for line in lines:
        field, _, value = line.decode().rstrip("\n").partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)


def _message(body: str) -> str:
    """The service's error message, or the start of the body without one."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200]


def samples(metrics_text: str, *names: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Values of the samples called one of `names`, by (name, labels)."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics_text)
        for sample in family.samples
        if sample.name in names
    }


def compile_counters(metrics_text: str) -> dict[str, float]:
    """The compilation counters, summed over modes."""
    totals: dict[str, float] = defaultdict(float)
    for (name, _), value in samples(metrics_text, *COMPILE_COUNTERS).items():
        totals[name] += value
    return totals


def requests_by_mode(metrics_text: str) -> dict[str, dict[str, float]]:
    """`launchbound_requests_total` as {mode: {outcome: count}}."""
    counts: dict[str, dict[str, float]] = defaultdict(dict)
    for (_, labels), value in samples(metrics_text, "launchbound_requests_total").items():
        named = dict(labels)
        counts[named.get("mode", "")][named.get("outcome", "")] = value
    return counts


CONNECT_GRACE_SECONDS = 60.0
"""How long the service may be unreachable: one that has just been started imports for some seconds."""

WITHOUT_PROGRESS_SECONDS = 1800.0
"""How long nothing may change: the service tells of a mode when all its callables are compiled, minutes of
a large model each."""

POLL_SECONDS = 0.5


def wait_until_ready(target: Target, plan: Plan, report: Callable[[str], None]) -> dict[str, Any]:
    """The document of GET /v1/modes once all modes of `plan` are ready and no other is warming up.

    Raises what `await_modes` raises, and TargetError for a service that cannot run `plan`.
    """
    document = await_modes(target, plan.modes, report, settled=True)
    buckets = document["engine"].get("batch_buckets") or []
    if buckets and plan.batch_sizes[-1] > max(buckets):
        raise TargetError(
            f"the plan has batch size {plan.batch_sizes[-1]}, the service takes up to {max(buckets)}: "
            f"start it with --batch-sizes {','.join(map(str, plan.batch_sizes))}"
        )
    if not plan.replicas and target.replica is not None:
        raise TargetError(
            f"{target.url} is a proxy of replicas (this was {target.replica}), and requests run on any: "
            "sweep one by its own address, which the log of `launchbound serve --replicas` has, "
            "or write `replicas = true` into the plan"
        )
    return document


def await_modes(
    target: Target,
    modes: Sequence[str],
    report: Callable[[str], None],
    without_progress_seconds: float = WITHOUT_PROGRESS_SECONDS,
    settled: bool = False,
) -> dict[str, Any]:
    """The document of GET /v1/modes once all of `modes` are ready; `settled`: and the engine is warm.

    A warm engine has finished warming up all its modes, of which those may have failed that `modes` does not
    name. `report` is called with one line of state at every poll. Raises TargetError where the service does
    not answer or does not serve a mode, or after `without_progress_seconds` without a new stage of warming
    up, and ModeFailed where a mode failed (out of parity included). Of a module a mode fails alone, and is
    then none that is waited for: only the baseline's failure is one.
    """
    began = last = monotonic()
    stages = set[Hashable]()
    while True:
        waited = monotonic() - began
        try:
            document = target.modes()
        except Unreachable:
            if stages or waited > CONNECT_GRACE_SECONDS:
                raise
            report(f"{waited:.0f} s: waiting for {target.url} to answer")
        else:
            if _is_ready(document, modes, settled):
                return document
            # A change alone is no progress: an engine that dies and is replaced repeats its stages for ever.
            if (stage := _stage(document)) not in stages:
                stages.add(stage)
                last = monotonic()
            quiet = monotonic() - last
            doing = _doing(document, modes)
            report(f"{waited:.0f} s: {doing}")
            if quiet > without_progress_seconds:
                raise TargetError(
                    f"not ready after {waited:.0f} s, of which the last {quiet:.0f} s brought nothing new "
                    f"({doing}): see {target.url}/health/ready for what is missing, and the service's log"
                )
        sleep(POLL_SECONDS)


def _is_ready(document: dict[str, Any], modes: Sequence[str], settled: bool) -> bool:
    """Raises TargetError for a mode that is not served, ModeFailed for one that has failed."""
    served = {mode["mode"]: mode for mode in document["modes"]}
    if missing := [mode for mode in modes if mode not in served]:
        raise TargetError(
            f"the service does not serve {', '.join(missing)} (it serves {', '.join(served)}): "
            "start it with these modes, or choose others"
        )
    engine = document.get("engine")
    alone = engine is not None and workload_of(engine) is FORWARD
    for mode in modes:
        if served[mode]["state"] == "failed" and (not alone or mode == BASELINE):
            raise ModeFailed(
                f"mode {mode} failed to become ready: {failure(served[mode])}; sweep without it, or fix it"
            )
    is_up = engine is not None and (not settled or bool(engine.get("warm")))
    return is_up and all(served[mode]["state"] in ("ready", "failed") for mode in modes)


def failure(status: Mapping[str, Any]) -> str:
    return status.get("detail") or status.get("reason") or "without a reason"


def in_short(status: Mapping[str, Any]) -> str:
    """The first line of `failure`: a compiler's error may have hundreds."""
    return failure(status).strip().partition("\n")[0]


def _stage(document: dict[str, Any]) -> Hashable:
    """What of warming up is done: the engine, and per mode its state, compilations, parity and splits."""
    engine = document.get("engine") or {}
    modes = tuple(
        (one["mode"], one["state"], len(one.get("compile_seconds") or ()), one.get("parity") is not None,
         len(one.get("splits") or ()))
        for one in document["modes"]
    )  # fmt: skip
    return (bool(engine), bool(engine.get("warm")), modes)


def _doing(document: dict[str, Any], modes: Sequence[str]) -> str:
    """What is ready and what is not, of `modes` or, where none are named, of all."""
    states = {m["mode"]: m["state"] for m in document["modes"] if not modes or m["mode"] in modes}
    waiting = [f"{mode} {state}" for mode, state in states.items() if state != "ready"]
    rest = "engine starting" if document.get("engine") is None else "sampling steps"
    return f"{len(states) - len(waiting)} of {len(states)} modes ready; {', '.join(waiting) or rest}"


def without_doubles(document: dict[str, Any], plan: Plan, report: Callable[[str], None]) -> Plan:
    """`plan` without the modes that run as another one of it on the device of the service.

    They would be measured twice, and the rounds would try to tell one thing apart. `document` is that of GET
    /v1/modes; a line per mode goes to `report`.
    """
    doubled = doubles(plan.modes, document["engine"]["device"])
    for mode, other in doubled.items():
        report(f"{mode} is left out: on this device it runs as {other}, which is measured")
    return msgspec.structs.replace(plan, cells=tuple(c for c in plan.cells if c.mode not in doubled))


def without_failed(document: dict[str, Any], plan: Plan, report: Callable[[str], None]) -> Plan:
    """`plan` without the modes in which a module failed; a line per mode goes to `report`."""
    failed = {one["mode"]: in_short(one) for one in document["modes"] if one["state"] == "failed"}
    for mode in failed.keys() & set(plan.modes):
        report(f"{mode} is left out: it failed to become ready: {failed[mode]}")
    return msgspec.structs.replace(plan, cells=tuple(c for c in plan.cells if c.mode not in failed))


SCRAPES_FOLDER = "server_metrics"
COUNTED_WITHIN_SECONDS = 3.0
"""The server counts a request after sending the response, which may be after the client has received it."""

Moment = Literal["before", "after"]


def _path(folder: Path, moment: Moment, part: int) -> Path:
    """`server_metrics/before.prom`, and `before-2.prom` of a second part."""
    return folder / SCRAPES_FOLDER / (f"{moment}.prom" if part == 1 else f"{moment}-{part}.prom")


def scrape(
    target: Target, folder: Path, moment: Moment, part: int, note: Callable[[str], None]
) -> str | None:
    """The text of /metrics, saved for `part` of the sweep; None, and a note, where it is not read."""
    try:
        text = target.metrics()
    except TargetError as error:
        note(f"no scrape {moment}: {error}")
        return None
    path = _path(folder, moment, part)
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return text


def settled_scrape(
    target: Target, folder: Path, before: str | None, rows: int, part: int, note: Callable[[str], None]
) -> None:
    """Take the scrape `after` of `part`, once the server has counted as many requests as it has `rows`."""
    deadline = monotonic() + COUNTED_WITHIN_SECONDS
    while (after := scrape(target, folder, "after", part, note)) is not None and before is not None:
        if total_requests(after) - total_requests(before) >= rows or monotonic() > deadline:
            return
        sleep(0.1)


def total_requests(metrics_text: str) -> float:
    """How many the server has counted, over all modes and outcomes."""
    return sum(sum(outcomes.values()) for outcomes in requests_by_mode(metrics_text).values())


def read_scrapes(folder: Path, part: int) -> tuple[str | None, str | None]:
    """The scrapes before and after `part`; None for one that was not taken."""
    paths = (_path(folder, moment, part) for moment in get_args(Moment))
    before, after = (path.read_text(encoding="utf-8") if path.exists() else None for path in paths)
    return before, after
