"""The service's log: what each line says, in which form, and where it goes."""

from __future__ import annotations

import logging
import os
import re
import select
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal

import msgspec

from service.front.engine_client import Listener
from service.front.errors import LaunchboundError
from service.front.request_timing import RequestTiming, TimingsBody
from service.front.settings import Settings
from service.machine import processor_name
from service.records import Cache, EngineStatus, Job, ModeStatus

LogFormat = Literal["text", "json"]

STANDARD_ERROR = 2


def set_up(form: LogFormat, descriptor: int = STANDARD_ERROR) -> None:
    """Send all records of this process to `descriptor`, and what ends it without being caught."""
    handler = LineHandler(descriptor)
    handler.setFormatter(FORMATTERS[form]())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(True)
    sys.excepthook = _uncaught


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, Exception):
        logging.getLogger("launchbound").critical("the service ended", exc_info=(kind, error, trace))
    else:
        sys.__excepthook__(kind, error, trace)


MOST_CHARACTERS = 4000
"""Of one text in a line."""

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, among them all that end a line or begin a terminal's commands; characters that turn the
direction of what follows; halves of characters, which have no UTF-8.
"""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A message of `logging` with fields: in JSON these are the line's own, for people it is its `str`."""


def one_line(text: str, most: int = MOST_CHARACTERS, keep: str = "") -> str:
    """`text` cut to `most` characters, with an escape for each that could break or forge a line.

    The characters in `keep` stay.
    """
    shown = text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"
    return _UNSAFE.sub(lambda found: found[0] if found[0] in keep else _escape(found[0]), shown)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


LogRequests = Literal["all", "failed", "off"]
"""Which requests have a line: every one, those that did not end well, or none."""

Ending = Literal["ok", "error", "cancelled", "timeout", "oom", "rejected"]
"""As the label `outcome` of the metric `requests_total`."""

log = logging.getLogger("launchbound.request")

PARTS = (
    ("queue", "queue_seconds"),
    ("dispatch", "dispatch_seconds"),
    ("kernel", "kernel_seconds"),
    ("wait", "sync_wait_seconds"),
    ("stall", "stall_seconds"),
    ("other", "other_seconds"),
    ("first", "time_to_first_token_seconds"),
)
"""What people are shown of the timings, and under which name."""


class RequestLine(Event, frozen=True, kw_only=True):
    """One request. The timings have the names and the meaning that they have in its answer.

    None: not measured, or not known because the request did not get that far. `total_seconds` of one that
    failed goes from its parsed body to its failure. `error` is the type that the client was told.
    """

    id: str
    mode: str | None
    effective: str | None = None
    status: int
    outcome: Ending
    error: str | None = None
    stream: bool | None = None
    batch_size: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_seconds: float | None = None
    queue_seconds: float | None = None
    dispatch_seconds: float | None = None
    device_span_seconds: float | None = None
    kernel_seconds: float | None = None
    sync_wait_seconds: float | None = None
    stall_seconds: float | None = None
    other_seconds: float | None = None
    time_to_first_token_seconds: float | None = None
    involuntary_switches: int | None = None
    profiled: bool | None = None
    sampled: bool | None = None

    def __str__(self) -> str:
        total = "-" if self.total_seconds is None else f"{self.total_seconds * 1000:.2f} ms"
        words = [f"{self.mode or '-':<15} {self.status} {self.outcome:<9} {total:>12}"]
        if self.batch_size is not None:
            words.append(f"batch {self.batch_size:<2}")
        if self.prompt_tokens is not None:
            words.append(f"tokens {self.prompt_tokens:>3} + {self.completion_tokens:<3}")
        for name, field in PARTS:
            if (seconds := getattr(self, field)) is not None:
                words.append(f"{name} {seconds * 1000:.2f}")
        if self.error is not None:
            words.append(self.error)
        return "  ".join([*words, f"id {self.id}"])


TIMINGS = tuple(part.name for part in fields(TimingsBody) if part.name in RequestLine.__struct_fields__)


class RequestLog:
    """Writes the lines that `which` asks for."""

    def __init__(self, which: LogRequests) -> None:
        self._all = which == "all"
        self._failed = which != "off"

    def ended(self, timing: RequestTiming) -> None:
        """A request that ended well."""
        if self._all and log.isEnabledFor(logging.INFO):
            log.info(_request_line(timing))

    def failed(self, job: Job, error: LaunchboundError, outcome: Ending, status: int, seconds: float) -> None:
        """An accepted request that did not; `status` is what its client has got."""
        if self._failed:
            line = RequestLine(
                id=job.request_id,
                mode=job.mode,
                status=status,
                outcome=outcome,
                error=error.type,
                stream=job.stream,
                batch_size=len(job.prompts),
                total_seconds=seconds,
            )
            log.warning(line)

    def rejected(self, request_id: str, mode: str | None, error: LaunchboundError, status: int) -> None:
        """A request that was refused before it ran; `mode` where it had named a valid one."""
        if self._failed:
            line = RequestLine(id=request_id, mode=mode, status=status, outcome="rejected", error=error.type)
            log.warning(line)

    def broken(self, request_id: str) -> None:
        """A request that ended by a fault of ours."""
        if self._failed:
            line = RequestLine(id=request_id, mode=None, status=500, outcome="error", error="internal")
            log.error(line)


def _request_line(timing: RequestTiming) -> RequestLine:
    outcome, parts = timing.outcome, timing.parts
    return RequestLine(
        id=timing.job.request_id,
        mode=timing.job.mode,
        effective=outcome.effective,
        status=200,
        outcome="ok",
        stream=timing.job.stream,
        batch_size=outcome.batch_size,
        prompt_tokens=outcome.prompt_tokens,
        completion_tokens=sum(output.completion_tokens for output in outcome.outputs),
        **{name: getattr(parts, name) for name in TIMINGS},
    )


engine_log = logging.getLogger("launchbound.engine")

start_log = logging.getLogger("launchbound.start")

mode_log = logging.getLogger("launchbound.mode")

SETTLED = ("ready", "failed")


class ModeLine(Event, frozen=True, kw_only=True):
    """A mode that has become ready, or has failed for the reason in `detail`.

    `compile_seconds` is the sum over its `compilations`; `recompiles` counts those after it was ready.
    """

    mode: str
    state: str
    effective: str
    reason: str | None
    detail: str | None
    cache: Cache | None
    warmup_seconds: float | None
    compilations: int
    compile_seconds: float
    graph_breaks: int
    recompiles: int

    def __str__(self) -> str:
        words = [f"{self.mode:<15} {self.state}"]
        if self.effective != self.mode:
            words.append(f"as {self.effective} ({one_line(self.reason or 'no reason given')})")
        if self.warmup_seconds is not None:
            words.append(f"warmed up in {self.warmup_seconds:.1f} s")
        if self.compilations:
            count = f"{self.compilations} compilations in {self.compile_seconds:.1f} s"
            words.append(f"{count}, cache {self.cache or 'not known'}")
        if self.recompiles:
            words.append(f"recompiled {self.recompiles} times")
        if self.detail:
            words.append(one_line(self.detail))
        return "; ".join(words)


class EngineLog(Listener):
    """`build` is this front's version and commit, `address` where it is reached: None without a server."""

    def __init__(self, settings: Settings, build: Mapping[str, str], address: str | None) -> None:
        key, folder = settings.api_key is not None, str(settings.cache_folder)
        self._front = {**build, "address": address, "key": key, "cache_folder": folder}
        self._modes: dict[str, ModeStatus] = {}
        self._status: EngineStatus | None = None

    def engine(self, status: EngineStatus) -> None:
        """Its first status makes the banner; the first that is warm ends the warm-up."""
        before, self._status = self._status, status
        if before is None:
            start_log.info(_banner(self._front, status, self._states(status)))
        if status.warm and not (before and before.warm):
            states = self._states(status)
            ready = [name for name, state in states.items() if state == "ready"]
            engine_log.info("the engine is warm; modes that serve: %s", ", ".join(ready) or "none")

    def mode(self, status: ModeStatus) -> None:
        """One line where it is ready, has failed, or has compiled again."""
        before = self._modes.get(status.mode)
        self._modes[status.mode] = status
        recompiled = before is not None and before.recompiles < status.recompiles
        changed = before is None or before.state != status.state
        if status.state in SETTLED and (changed or recompiled):
            bad = status.state == "failed" or recompiled
            mode_log.log(logging.WARNING if bad else logging.INFO, _mode_line(status))

    def engine_lost(self) -> None:
        """Why is the supervisor's line."""
        self._modes.clear()
        self._status = None

    def _states(self, status: EngineStatus) -> dict[str, str]:
        return {name: self._modes[name].state if name in self._modes else "cold" for name in status.modes}


def _mode_line(status: ModeStatus) -> ModeLine:
    same = {name: getattr(status, name) for name in ModeLine.__struct_fields__}
    same |= {"compilations": len(status.compile_seconds), "compile_seconds": sum(status.compile_seconds)}
    return ModeLine(**same)


LABEL_WIDTH = 12


class Banner(Event, frozen=True, kw_only=True):
    """`cpu` is the processor's name, `engine_pid` the engine's process. `modes`: name → state by now.

    `key`: whether calls need one.
    """

    version: str
    commit: str
    address: str | None
    key: bool
    cache_folder: str
    model: str
    parameters: int
    dtype: str
    context: int
    batch_sizes: list[int]
    linears: str | None
    device: str
    device_name: str
    cpu: str
    torch: str
    cuda: str | None
    threads: int
    engine_pid: int
    engine_cpus: list[int]
    front_cpus: list[int]
    modes: dict[str, str]

    def __str__(self) -> str:
        key = "calls need the API key" if self.key else "no API key is set"
        device = self.device if self.device == self.device_name else f"{self.device} ({self.device_name})"
        torch = f"{self.torch} with CUDA {self.cuda}" if self.cuda else self.torch
        sizes = ", ".join(map(str, self.batch_sizes))
        model = f"{self.model} · {self.parameters:,} parameters · {self.dtype} · context {self.context}"
        lines = {
            "launchbound": f"{self.version} ({self.commit})",
            "address": f"{self.address or 'none'} · {key}",
            "model": model,
            "linears": self.linears or "not laid out",
            "device": f"{device} · {self.cpu}",
            "torch": f"{torch} · threads {self.threads}",
            "cores": f"engine {_list(self.engine_cpus)} · front {_list(self.front_cpus)}",
            "batch sizes": sizes,
            "modes": ", ".join(f"{name} {state}" for name, state in self.modes.items()),
            "cache": self.cache_folder,
        }
        return "\n".join(f"{label:<{LABEL_WIDTH}} {one_line(text)}" for label, text in lines.items())


def _banner(front: Mapping[str, Any], status: EngineStatus, states: dict[str, str]) -> Banner:
    """What `status` says of the engine, beside what is known of the front; `states` are its modes'."""
    same = {name: getattr(status, name, None) for name in Banner.__struct_fields__}
    own = {
        "linears": status.linears.layout if status.linears else None,
        "batch_sizes": status.batch_buckets,
        "cpu": processor_name(),
        "engine_pid": status.pid,
        "engine_cpus": status.cpus,
        "front_cpus": sorted(os.sched_getaffinity(0)),
        "modes": states,
    }
    return Banner(**{**same, **front, **own})


def _list(cores: list[int]) -> str:
    return ",".join(map(str, cores))


MOST_TRACEBACK_CHARACTERS = 20_000

SERVER = "server"
"""The component of uvicorn's lines."""

_encode = msgspec.json.Encoder().encode


class TextFormatter(logging.Formatter):
    """Local time, level, component, message; a traceback follows in lines that begin with blanks.

    Only an event may have several lines, each of which begins like any other.
    """

    def format(self, record: logging.LogRecord) -> str:
        """One line, and those of a traceback."""
        at = datetime.fromtimestamp(record.created).isoformat(" ", "milliseconds")
        head = f"{at} {record.levelname.lower():<7} {_component(record.name):<10}"
        message = record.getMessage().rstrip()
        shown = message.split("\n") if isinstance(record.msg, Event) else [message]
        lines = [f"{head} {one_line(line)}" for line in shown]
        if (trace := _traceback(self, record)) is not None:
            lines += [f"    {one_line(line)}" for line in trace.split("\n")]
        return "\n".join(lines)


class JsonFormatter(logging.Formatter):
    """One object a line: `time` (UTC), `level`, `component`; `message`, or an event's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "component": _component(record.name),
        }
        if isinstance(record.msg, Event):
            line |= {name: _clean(value) for name, value in msgspec.to_builtins(record.msg).items()}
        else:
            line["message"] = one_line(record.getMessage().rstrip(), keep="\n")
        if (trace := _traceback(self, record)) is not None:
            line["traceback"] = one_line(trace, MOST_TRACEBACK_CHARACTERS, keep="\n")
        return _encode(line).decode()


FORMATTERS = {"text": TextFormatter, "json": JsonFormatter}


def _component(name: str) -> str:
    """Of a logger: that of ours without our name, uvicorn's as the server's."""
    if name.startswith("uvicorn"):
        return SERVER
    return name.removeprefix("launchbound.") if name != "launchbound" else "service"


def _clean(value: Any) -> Any:  # noqa: ANN401 - whatever an event's fields hold
    if isinstance(value, str):
        return one_line(value, keep="\n")
    if isinstance(value, dict):
        return {name: _clean(inner) for name, inner in value.items()}
    return [_clean(inner) for inner in value] if isinstance(value, list) else value


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str | None:
    return formatter.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else None


BACKLOG_LINES = 2000
"""Lines that wait for a reader; what comes beyond is dropped, and counted."""

PIECE_BYTES = 4096
"""A descriptor that can be written to takes so many without a wait: PIPE_BUF."""

CLOSING_MILLISECONDS = 500


class LineHandler(logging.Handler):
    """Lines leave at once, or, where nobody reads them just then, before the next one.

    The event loop logs: with `| less` behind it, or a terminal that is held by Ctrl-S, a write that waits
    would hold every request. A full disk, or a reader that has gone, costs lines and nothing else; the next
    line that can be written says how many.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._waiting: deque[bytes] = deque()
        self._rest = b""
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; called with the lock of this handler held."""
        self._write(0)
        if len(self._waiting) >= BACKLOG_LINES:
            self._dropped += 1
            return
        if self._dropped and not self._waiting and not self._rest:
            self._confess()
        self._waiting.append(self._line(record))
        self._write(0)

    def close(self) -> None:
        """Write what waits, if it is read within CLOSING_MILLISECONDS."""
        self.acquire()
        try:
            self._write(CLOSING_MILLISECONDS)
        finally:
            self.release()
        super().close()

    def _line(self, record: logging.LogRecord) -> bytes:
        try:
            text = self.format(record)
        except Exception as error:  # noqa: BLE001 - a bad record must not end who logs it
            text = self.format(_own("a line of %s could not be made: %s", record.name, error))
        return text.encode(errors="backslashreplace") + b"\n"

    def _write(self, milliseconds: int) -> None:
        while (self._rest or self._waiting) and self._poll.poll(milliseconds):
            line = self._rest or self._waiting.popleft()
            try:
                written = os.write(self._descriptor, line[:PIECE_BYTES])
            except OSError:
                if self._rest:
                    # The end of a line that was begun is still owed, or the next one would be part of it.
                    self._rest = b"\n"
                    return
                self._dropped += 1
            else:
                self._rest = line[written:]

    def _confess(self) -> None:
        """Say how many lines are missing, where that can be written; else it stays to be said."""
        text = "%d lines of this log were dropped: nobody read them, or their disk is full"
        line = self._line(_own(text, self._dropped))
        try:
            if self._poll.poll(0):
                os.write(self._descriptor, line)
                self._dropped = 0
        except OSError:
            return


def _own(text: str, *arguments: object) -> logging.LogRecord:
    """What the log has to say of itself."""
    return logging.LogRecord("launchbound.log", logging.WARNING, __file__, 0, text, arguments, None)
