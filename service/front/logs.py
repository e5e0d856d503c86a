"""The service's log: what each line says, in which form, and where it goes."""

from __future__ import annotations

import logging
import os
import re
import select
import sys
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal

import msgspec

from service.front.engine_client import Listener
from service.front.errors import LaunchboundError
from service.front.request_timing import RequestTiming, part_of
from service.front.settings import Settings
from service.machine import processor_name
from service.records import EngineStatus, Job, ModeStatus

LogFormat = Literal["text", "json"]


def set_up(form: LogFormat) -> None:
    """Send all records of this process to standard error, and what ends it uncaught."""
    handler = LineHandler(2)
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
"""Control characters (line ends, a terminal's escapes), characters that turn the writing direction, and
halves of characters, which have no UTF-8.
"""


def one_line(text: str, most: int = MOST_CHARACTERS, keep: str = "") -> str:
    """`text` cut to `most` characters, those escaped, but for `keep`, that could break or forge a line."""

    def escaped(found: re.Match[str]) -> str:
        return found[0] if found[0] in keep else found[0].encode("unicode_escape").decode("ascii")

    shown = text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"
    return _UNSAFE.sub(escaped, shown)


LogRequests = Literal["all", "failed", "off"]
"""Which requests have a line: every one, those that did not end well, or none."""

Ending = Literal["ok", "error", "cancelled", "timeout", "oom", "rejected"]
"""As the label `outcome` of the metric `requests_total`."""

log = logging.getLogger("launchbound.request")

PARTS = {
    "queue": "queue_seconds", "dispatch": "dispatch_seconds", "kernel": "kernel_seconds",
    "wait": "sync_wait_seconds", "stall": "stall_seconds", "other": "other_seconds",
    "first": "time_to_first_token_seconds",
}  # fmt: skip
"""Word in a line of text → timing."""

TIMINGS = (
    "total_seconds", "queue_seconds", "dispatch_seconds", "device_span_seconds", "kernel_seconds",
    "sync_wait_seconds", "stall_seconds", "other_seconds", "time_to_first_token_seconds",
    "involuntary_switches", "profiled", "sampled",
)  # fmt: skip
"""As in the request's answer."""

REQUEST_FIELDS = (
    "id", "mode", "effective", "status", "outcome", "error", "stream", "batch_size", "prompt_tokens",
    "completion_tokens", *TIMINGS,
)  # fmt: skip
"""Null: not measured, or not known because the request did not get that far. `total_seconds` of a failed
request goes from its parsed body to its failure. `error` is the type in its answer. A request of a module has
`calls` beside these, and no tokens.
"""


class RequestEvent:
    """A message of `logging`: in JSON its fields are the line's own, in text they are words of it."""

    def __init__(self, **known: object) -> None:
        self.fields: dict[str, Any] = {**dict.fromkeys(REQUEST_FIELDS), **known}

    def __str__(self) -> str:
        return _request_text(self.fields)


def _request_text(line: dict[str, Any]) -> str:
    total = "-" if line["total_seconds"] is None else f"{line['total_seconds'] * 1000:.2f} ms"
    words = [f"{line['mode'] or '-':<15} {line['status']} {line['outcome']:<9} {total:>12}"]
    if line["batch_size"] is not None:
        words.append(f"batch {line['batch_size']:<2}")
    if "calls" in line:
        words.append(f"calls {line['calls']:<5}")
    if line["prompt_tokens"] is not None:
        words.append(f"tokens {line['prompt_tokens']:>3} + {line['completion_tokens']:<3}")
    shown = {name: line[field] for name, field in PARTS.items()}
    words += [f"{name} {seconds * 1000:.2f}" for name, seconds in shown.items() if seconds is not None]
    if line["error"] is not None:
        words.append(line["error"])
    return "  ".join([*words, f"id {line['id']}"])


def _work_of(timing: RequestTiming) -> dict[str, int]:
    outcome, work = timing.outcome, timing.job.forward
    if work is not None:
        return {"calls": work.calls}
    completed = sum(output.completion_tokens for output in outcome.outputs)
    return {"prompt_tokens": outcome.prompt_tokens, "completion_tokens": completed}


class RequestLog:
    def __init__(self, which: LogRequests) -> None:
        self._all = which == "all"
        self._failed = which != "off"

    def ended(self, timing: RequestTiming) -> None:
        if not self._all or not log.isEnabledFor(logging.INFO):
            return
        outcome, parts = timing.outcome, timing.parts
        event = RequestEvent(
            id=timing.job.request_id,
            mode=timing.job.mode,
            effective=outcome.effective,
            status=200,
            outcome="ok",
            stream=timing.job.stream,
            batch_size=outcome.batch_size,
            **_work_of(timing),
            **{name: part_of(parts, name) for name in TIMINGS},
        )
        log.info(event)

    def failed(self, job: Job, error: LaunchboundError, outcome: Ending, status: int, seconds: float) -> None:
        self._warn(
            id=job.request_id,
            mode=job.mode,
            status=status,
            outcome=outcome,
            error=error.type,
            stream=job.stream,
            batch_size=job.batch_size,
            total_seconds=seconds,
        )

    def rejected(self, request_id: str, mode: str | None, error: LaunchboundError, status: int) -> None:
        self._warn(id=request_id, mode=mode, status=status, outcome="rejected", error=error.type)

    def broken(self, request_id: str) -> None:
        self._warn(logging.ERROR, id=request_id, status=500, outcome="error", error="internal")

    def _warn(self, level: int = logging.WARNING, **known: object) -> None:
        if self._failed:
            log.log(level, RequestEvent(**known))


engine_log = logging.getLogger("launchbound.engine")
start_log = logging.getLogger("launchbound.start")
mode_log = logging.getLogger("launchbound.mode")


class EngineLog(Listener):
    """Logs what the engine reports. `build` is this front's version and commit, `address` its URL."""

    def __init__(self, settings: Settings, build: Mapping[str, str], address: str | None) -> None:
        key = "no API key is set" if settings.api_key is None else "calls need the API key"
        self._front = {
            "launchbound": f"{build['version']} ({build['commit']})",
            "address": f"{address or 'none'} · {key}",
            "cache": str(settings.cache_folder),
        }
        self._modes: dict[str, ModeStatus] = {}
        self._status: EngineStatus | None = None

    def engine(self, status: EngineStatus) -> None:
        before, self._status = self._status, status
        states = {name: self._modes[name].state if name in self._modes else "cold" for name in status.modes}
        if before is None:
            modes = ", ".join(f"{name} {state}" for name, state in states.items())
            for label, text in {**self._front, **_described(status), "modes": modes}.items():
                start_log.info("%-12s %s", label, text)
        if status.warm and not (before and before.warm):
            ready = [name for name, state in states.items() if state == "ready"]
            engine_log.info("the engine is warm; modes that serve: %s", ", ".join(ready) or "none")

    def mode(self, status: ModeStatus) -> None:
        before = self._modes.get(status.mode)
        self._modes[status.mode] = status
        recompiled = before is not None and before.recompiles < status.recompiles
        changed = before is None or before.state != status.state
        if status.state in ("ready", "failed") and (changed or recompiled):
            bad = status.state == "failed" or recompiled
            mode_log.log(logging.WARNING if bad else logging.INFO, "%s", _mode_text(status))

    def engine_lost(self) -> None:
        self._modes.clear()
        self._status = None


def _mode_text(status: ModeStatus) -> str:
    words = [f"{status.mode:<15} {status.state}"]
    if status.effective != status.mode:
        words.append(f"as {status.effective} ({status.reason or 'no reason given'})")
    if status.warmup_seconds is not None:
        words.append(f"warmed up in {status.warmup_seconds:.1f} s")
    if status.compile_seconds:
        count = f"{len(status.compile_seconds)} compilations in {sum(status.compile_seconds):.1f} s"
        words.append(f"{count}, cache {status.cache or 'not known'}")
    if status.recompiles:
        words.append(f"recompiled {status.recompiles} times")
    if status.detail:
        words.append(status.detail)
    return "; ".join(words)


def _described(status: EngineStatus) -> dict[str, str]:
    name = "" if status.device == status.device_name else f" ({status.device_name})"
    torch = f"{status.torch} with CUDA {status.cuda}" if status.cuda else status.torch
    size = f"{status.parameters:,} parameters · {status.dtype}"
    size += f" · context {status.context}" if status.inputs is None else f" · called on {status.inputs}"
    engine, front = (",".join(map(str, cores)) for cores in (status.cpus, sorted(os.sched_getaffinity(0))))
    return {
        "model": f"{status.model} · {size}",
        "linears": status.linears.layout if status.linears else "not laid out",
        "device": f"{status.device}{name} · {processor_name()}",
        "torch": f"{torch} · threads {status.threads}",
        "cores": f"engine {engine} · front {front}",
        "batch sizes": ", ".join(map(str, status.batch_buckets)),
    }


MOST_TRACEBACK_CHARACTERS = 20_000


class TextFormatter(logging.Formatter):
    """Local time, level, component, message; a traceback follows in lines that begin with blanks."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created).isoformat(" ", "milliseconds")
        head = f"{at} {record.levelname.lower():<7} {_component(record.name):<10}"
        lines = [f"{head} {one_line(record.getMessage().rstrip())}"]
        if (trace := _traceback(self, record)) is not None:
            lines += [f"    {one_line(line)}" for line in trace.split("\n")]
        return "\n".join(lines)


class JsonFormatter(logging.Formatter):
    """One object a line: `time` (UTC), `level`, `component`; `message`, or an event's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "component": _component(record.name),
        }
        if isinstance(record.msg, RequestEvent):
            fields = record.msg.fields.items()
            line |= {name: one_line(of, keep="\n") if isinstance(of, str) else of for name, of in fields}
        else:
            line["message"] = one_line(record.getMessage().rstrip(), keep="\n")
        if (trace := _traceback(self, record)) is not None:
            line["traceback"] = one_line(trace, MOST_TRACEBACK_CHARACTERS, keep="\n")
        return msgspec.json.encode(line).decode()


FORMATTERS = {"text": TextFormatter, "json": JsonFormatter}


def _component(name: str) -> str:
    if name.startswith("uvicorn"):
        return "server"
    return name.removeprefix("launchbound.") if name != "launchbound" else "service"


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str | None:
    return formatter.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else None


BACKLOG_LINES = 2000
"""Lines that wait for a reader; what comes beyond is dropped, and counted."""

PIECE_BYTES = 4096
"""A descriptor that can be written to takes so many without a wait: PIPE_BUF."""

CLOSING_MILLISECONDS = 500


class LineHandler(logging.Handler):
    """Writes lines at once, or, where their reader does not read, before the next one. It never waits.

    The event loop logs, so a write that waits, as behind `| less`, would hold every request. A full disk, or
    a reader that has gone, costs lines; the next line that can be written says how many.
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
        self._write(0)
        if len(self._waiting) >= BACKLOG_LINES:
            self._dropped += 1
            return
        if self._dropped and not self._waiting and not self._rest:
            self._report_dropped()
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

    def _report_dropped(self) -> None:
        text = "%d lines of this log were dropped: nobody read them, or their disk is full"
        line = self._line(_own(text, self._dropped))
        try:
            if self._poll.poll(0):
                os.write(self._descriptor, line)
                self._dropped = 0
        except OSError:
            return


def _own(text: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("launchbound.log", logging.WARNING, __file__, 0, text, arguments, None)
