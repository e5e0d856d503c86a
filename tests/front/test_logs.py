"""What the log says of requests, engine and modes: one line each whatever is in it, which holds nobody."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.front import logs
from service.front.access import WELL_FORMED
from service.front.child_process import MOST_LINE_BYTES, ChildOutput
from service.front.launch import LINE
from service.front.logs import (
    BACKLOG_LINES,
    FORMATTERS,
    MOST_CHARACTERS,
    PIECE_BYTES,
    REQUEST_FIELDS,
    EngineLog,
    JsonFormatter,
    LineHandler,
    RequestEvent,
    TextFormatter,
    one_line,
)
from service.front.settings import Settings
from service.records import ModeStatus
from tests.support.serving import GENERATE, Front, Lines, exchange, logged, refused, running, until

ANY_TEXT = st.text(st.characters(exclude_categories=()))
"""Control characters, line and paragraph separators, halves of characters and all."""

NASTY = "a\nb\r\x1b[31m\x85\u2028\u202e\ud800\x00"
FORGED = "fine\n2026-01-01 00:00:00.000 error   service    the disk is on fire"


def record(message: object, name: str = "launchbound.api", *arguments: object) -> logging.LogRecord:
    return logging.LogRecord(name, logging.INFO, __file__, 1, message, arguments, None)


def raised(error: Exception) -> logging.LogRecord:
    try:
        raise error
    except Exception:  # noqa: BLE001 - any will do
        return logging.LogRecord("launchbound", logging.ERROR, __file__, 1, "failed", (), sys.exc_info())


def is_plain(line: str) -> bool:
    """Whether it is one line for everybody, and tells a terminal nothing."""
    return len(line.splitlines()) <= 1 and re.search(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e]", line) is None


@pytest.mark.parametrize("form", FORMATTERS)
@given(ANY_TEXT)
def test_a_message_and_an_event_are_one_line_whatever_they_hold(form: str, text: str) -> None:
    formatter = FORMATTERS[form]()
    fields = RequestEvent(id=text, mode=text, status=200, outcome="error", error=text)
    event = formatter.format(record(fields))
    line = formatter.format(record("%s", "launchbound.api", text))
    assert is_plain(event)
    assert is_plain(line)
    event.encode()
    if form == "text":
        found: Any = LINE.fullmatch(line)
        line.encode()
    else:
        found = json.loads(line.encode())
        assert set(found) == {"time", "level", "component", "message"}
        assert found["time"].endswith("+00:00")
    assert (found["level"], found["component"]) == ("info", "api")


def test_no_exception_can_pretend_to_be_another_line() -> None:
    head, *trace = TextFormatter().format(raised(ValueError(f"{NASTY}\n{FORGED}"))).split("\n")
    assert LINE.fullmatch(head)
    assert trace
    assert all(line.startswith("    ") and is_plain(line) and LINE.fullmatch(line) is None for line in trace)


def test_an_exception_in_json_is_a_field_of_its_line() -> None:
    line = JsonFormatter().format(raised(ValueError(NASTY)))
    assert is_plain(line)
    told = json.loads(line)
    assert told["message"] == "failed"
    assert "ValueError" in told["traceback"]
    assert "\x1b" not in told["traceback"]


def test_a_huge_text_is_cut_and_says_so() -> None:
    shown = one_line("x" * 10_000_000)
    assert len(shown) < MOST_CHARACTERS + 100
    assert shown.endswith("(10000000 characters)")


def written(pieces: list[bytes]) -> Lines:
    """The log after a child has written `pieces`, one by one."""

    async def write() -> None:
        output = ChildOutput("engine")
        try:
            for piece in pieces:
                os.write(output.descriptor, piece)
                await asyncio.sleep(0)
        finally:
            output.close()

    with logged() as lines:
        asyncio.run(write())
    return lines


def messages(pieces: list[bytes]) -> list[str]:
    return [line["message"] for line in written(pieces).objects("engine")]


@given(st.binary(max_size=500), st.lists(st.integers(0, 500), max_size=4))
def test_a_line_does_not_depend_on_the_pieces_that_it_came_in(data: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[begin:end] for begin, end in pairwise(places)]
    whole = messages([data])  # also what has no line's end, once the child has ended
    assert messages(pieces) == whole
    assert len(whole) == sum(bool(line.decode(errors="replace").rstrip()) for line in data.split(b"\n"))


@pytest.mark.parametrize(
    ("line", "level", "message"),
    [
        (b"launchbound engine: dispatch is not measured", "warning", "dispatch is not measured"),
        (b"  File loop.py, line 1", "info", "  File loop.py, line 1"),
        (b"\x1b[31mred\x1b[0m\r", "info", "\\x1b[31mred\\x1b[0m"),
        (b"\xff\xfe", "info", "\ufffd\ufffd"),
    ],
)
def test_our_own_words_of_what_is_wrong_are_warnings(line: bytes, level: str, message: str) -> None:
    (found,) = written([line]).objects("engine")
    assert (found["level"], found["message"]) == (level, message)


LONG = "x" * 1000


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reads, writes = os.pipe()
    os.set_blocking(reads, False)
    yield reads, writes
    for descriptor in (reads, writes):
        os.close(descriptor)


def made(descriptor: int) -> LineHandler:
    made = LineHandler(descriptor)
    made.setFormatter(logging.Formatter("%(message)s"))
    return made


def say(to: LineHandler, text: str) -> None:
    to.handle(logging.LogRecord("launchbound", logging.INFO, __file__, 1, text, (), None))


def read(descriptor: int) -> list[str]:
    """The lines that are there now, the last one whole."""
    data = b""
    while True:
        try:
            data += os.read(descriptor, 65_536)
        except BlockingIOError:
            break
    assert data.endswith(b"\n") or not data
    return data.decode().splitlines()


def test_a_record_that_makes_no_line_is_a_line_that_says_so(pipe: tuple[int, int]) -> None:
    bad = logging.LogRecord("uvicorn.error", logging.INFO, __file__, 1, "%d", ("no number",), None)
    made(pipe[1]).handle(bad)
    (line,) = read(pipe[0])
    assert line.startswith("a line of uvicorn.error could not be made: %d format")


def test_a_line_arrives_at_once_and_whole_and_closing_writes_what_was_kept(pipe: tuple[int, int]) -> None:
    text = "".join(map(str, range(PIECE_BYTES)))
    log = made(pipe[1])
    say(log, text)
    assert read(pipe[0]) == [text]
    for _ in range(100):
        say(log, LONG)
    first = len(read(pipe[0]))
    log.close()
    assert first + len(read(pipe[0])) == 100


def test_a_childs_line_that_never_ends_is_cut() -> None:
    cut = messages([b"x" * 1000] * 20)
    assert len(cut) > 1
    assert all(len(message) <= MOST_LINE_BYTES for message in cut)


def test_who_does_not_read_holds_nobody_and_gets_what_was_kept_in_order(pipe: tuple[int, int]) -> None:
    log, count = made(pipe[1]), 500
    for number in range(count):
        say(log, f"{number} {LONG}")
    found = read(pipe[0])
    while len(found) < count:
        before = len(found)
        say(log, "more")
        found += read(pipe[0])
        assert len(found) > before
    assert [line.split()[0] for line in found[:count]] == [str(number) for number in range(count)]


def test_what_is_beyond_the_backlog_is_dropped_and_counted(pipe: tuple[int, int]) -> None:
    log, said, found = made(pipe[1]), 2 * BACKLOG_LINES, list[str]()
    for _ in range(said):
        say(log, LONG)
    while not any("were dropped" in line for line in found):
        new = read(pipe[0])
        assert new
        found += new
        say(log, "after")
    kept = found.count(LONG)
    assert BACKLOG_LINES <= kept < said
    assert f"{said - kept} lines of this log were dropped: nobody read them, or their disk is full" in found


def test_a_full_disk_or_a_reader_that_has_gone_costs_lines_and_nothing_else(pipe: tuple[int, int]) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        log = made(full)
        for _ in range(3):
            say(log, "lost")
        os.dup2(pipe[1], full)  # there is room again
        say(log, "found")
    finally:
        os.close(full)
    assert [line.partition(":")[0] for line in read(pipe[0])] == ["3 lines of this log were dropped", "found"]
    reads, writes = os.pipe()
    os.close(reads)
    try:
        say(made(writes), "to nobody")
    finally:
        os.close(writes)


def test_a_line_that_was_cut_off_does_not_run_into_the_next(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the disk is full in the middle of it."""
    write, failing = os.write, iter([False, True, False, False])

    def sometimes(descriptor: int, data: bytes) -> int:
        if next(failing):
            raise OSError("no space left")
        return write(descriptor, data)

    monkeypatch.setattr(logs.os, "write", sometimes)
    log = made(pipe[1])
    say(log, "y" * (PIECE_BYTES + 100))
    say(log, "next")
    monkeypatch.undo()
    assert read(pipe[0]) == ["y" * PIECE_BYTES, "next"]


FIELDS = {"time", "level", "component", *REQUEST_FIELDS}
BODY = json.dumps({"prompts": ["def mean(values):"], "max_new_tokens": 4}).encode()


@pytest.fixture
def lines() -> Iterator[Lines]:
    with logged() as kept:
        yield kept


def line_of(lines: Lines, request_id: str) -> dict[str, Any]:
    """The one line of this request, once it is written; nobody asks the service for anything meanwhile."""

    def found() -> list[dict[str, Any]]:
        return [line for line in lines.objects("request") if line["id"] == request_id]

    (line,) = until(found, f"the line of {request_id}")
    return line


def test_a_line_has_the_numbers_of_the_answer_under_their_names(front: Front, lines: Lines) -> None:
    answer = front.generate("compiled", {"X-Request-ID": "one"}, prompts=["a b c", "d e f"]).json()
    line = line_of(lines, "one")
    assert set(line) == FIELDS
    assert (line["level"], line["mode"], line["status"], line["outcome"]) == ("info", "compiled", 200, "ok")
    assert (line["effective"], line["error"]) == (answer["mode"]["effective"], None)
    assert line["batch_size"] == 2
    assert line["prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert line["completion_tokens"] == answer["usage"]["completion_tokens"]
    timed = [name for name in REQUEST_FIELDS if name.endswith("_seconds")]
    assert {name: line[name] for name in timed} == {name: answer["timings"][name] for name in timed}


def test_what_a_device_cannot_measure_is_null_and_not_shown_to_people(cuda_front: Front) -> None:
    with logged() as lines:
        cuda_front.generate(headers={"X-Request-ID": "json"})
        assert line_of(lines, "json")["kernel_seconds"] is None
    with logged("text") as text:
        cuda_front.generate(headers={"X-Request-ID": "text"})
        (line,) = until(lambda: [one for one in text.lines if one.endswith("id text")], "its line")
    found = LINE.fullmatch(line)
    assert found is not None
    head = r"eager +200 ok +[\d.]+ ms  batch 1 +tokens +\d+ \+ 4 +queue [\d.]+  dispatch "
    assert re.match(head, found["message"])
    assert "kernel" not in found["message"]
    assert "wait " in found["message"]


COMPLETIONS = "/v1/completions"


@pytest.mark.parametrize(
    ("path", "body", "status", "outcome", "error"),
    [
        (GENERATE, {"prompts": ["x"], "stream": True}, 200, "ok", None),
        (COMPLETIONS, {"model": "tiny:eager", "prompt": ["x", "y"]}, 200, "ok", None),
        (GENERATE, {"prompts": ["!oom"]}, 503, "oom", "out_of_memory"),
        (GENERATE, {"prompts": ["!problem internal"]}, 500, "error", "internal"),
        (GENERATE, {"prompts": ["!problem timeout"]}, 504, "timeout", "timeout"),
        (GENERATE, {"prompts": ["!problem prompt_too_long"]}, 422, "rejected", "prompt_too_long"),
        ("/v1/modes/nothing/generate", {"prompts": ["x"]}, 404, "rejected", "unknown_mode"),
        (GENERATE, {"prompts": []}, 422, "rejected", "invalid_request"),
    ],
)
def test_however_a_request_ends_it_has_its_status_and_one_line(
    front: Front, lines: Lines, path: str, body: dict[str, Any], status: int, outcome: str, error: str | None
) -> None:
    answer = front.http.post(path, json=body, headers={"X-Request-ID": "it"})
    assert answer.status_code == 200 or refused(answer, status)["type"] == error
    assert ("retry-after" in answer.headers) == (status == 503)
    line = line_of(lines, "it")
    assert set(line) == FIELDS
    assert (line["status"], line["outcome"], line["error"]) == (status, outcome, error)
    assert line["mode"] == (None if error == "unknown_mode" else "eager")
    assert line["level"] == ("info" if outcome == "ok" else "warning")
    assert (line["batch_size"] is None) is (outcome == "rejected")
    assert (line["total_seconds"] is None) is (outcome == "rejected")


def test_a_request_for_a_foreign_host_has_its_line(front: Front, lines: Lines) -> None:
    front.generate(headers={"X-Request-ID": "it", "Host": "elsewhere.example"})
    line = line_of(lines, "it")
    told = (line["status"], line["outcome"], line["error"], line["mode"])
    assert told == (403, "rejected", "host_not_allowed", None)


def test_a_client_that_goes_away_has_its_line(front: Front, lines: Lines) -> None:
    with pytest.raises(httpx.ReadTimeout):
        front.http.post(GENERATE, json={"prompts": ["!hold"]}, headers={"X-Request-ID": "it"}, timeout=0.2)
    line = line_of(lines, "it")
    assert (line["status"], line["outcome"], line["error"]) == (499, "cancelled", "cancelled")


def test_a_stream_that_breaks_has_the_status_that_its_client_has_got(own_front: Front, lines: Lines) -> None:
    own_front.command("!die-after-tokens", headers={"X-Request-ID": "broken"}, stream=True)
    line = line_of(lines, "broken")
    assert (line["status"], line["outcome"], line["error"]) == (200, "error", "engine_lost")


@pytest.mark.slow
@pytest.mark.parametrize(("which", "outcomes"), [("failed", ["rejected"]), ("off", [])])
def test_lines_can_be_had_of_failures_only_or_not_at_all(
    which: str, outcomes: list[str], lines: Lines
) -> None:
    with running({"log_requests": which}) as front:
        front.await_ready()
        front.generate()
        front.generate(max_new_tokens=0)
        front.http.get("/metrics")  # what is to be recorded is
        assert [line["outcome"] for line in lines.objects("request")] == outcomes


HEADER = st.binary(max_size=300).map(lambda value: re.sub(rb"[\r\n\x00]", b" ", value))
"""What can stand in a header: anything but its end."""

PATH = st.binary(min_size=1, max_size=100).map(
    lambda value: b"".join(b"%%%02x" % byte for byte in value.replace(b"/", b"."))
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(request_id=HEADER, mode=PATH)
def test_nothing_that_a_client_sends_can_break_a_line_or_forge_one(
    front: Front, lines: Lines, request_id: bytes, mode: bytes
) -> None:
    """Ids and modes of any bytes: line ends, escapes of terminals, no UTF-8 at all."""
    lines.lines.clear()
    head = b"Host: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    head += b"X-Request-ID: " + request_id
    data = b"POST /v1/modes/%s/generate HTTP/1.1\r\n%s\r\nContent-Length: %d\r\n\r\n%s"
    answer = exchange(front, data % (mode, head, len(BODY), BODY))
    told = until(lambda: lines.objects("request") or answer.status == 400, "its line")
    if told is True:
        return  # no HTTP, which the server itself refuses
    assert isinstance(told, list)
    (line,) = told
    assert set(line) == FIELDS
    assert WELL_FORMED.fullmatch(line["id"])
    assert line["id"] == answer.headers["x-request-id"]
    assert (line["status"], line["mode"]) == (answer.status, None)
    assert all(len(one.splitlines()) == 1 for one in lines.lines)


def status(state: str, **changes: object) -> ModeStatus:
    fields = {"mode": "compiled", "removes": "Python", "effective": "compiled", **changes}
    return ModeStatus(state=state, **fields)  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_lines_of_the_start_say_what_serves_where_and_who_may_call(tmp_path: Path) -> None:
    given = {"api_key": "secret", "cache_folder": tmp_path, "commit": "abc", "modes": ["eager", "compiled"]}
    with logged("text") as lines, running(given, states={"compiled": "failed"}) as front:
        until(lambda: front.state.client.engine, "the engine")
    shown = "\n".join(line for line in lines.lines if " start " in line)
    parts = (
        "(abc)", "none · calls need the API key", f"cache        {tmp_path}", "tiny · ", "cpu (fake)",
        "threads 1", "engine 0 · front ", "1, 4", "eager ready, compiled failed",
    )  # fmt: skip
    assert [part for part in parts if part not in shown] == []
    assert "secret" not in shown


def test_deaths_restarts_and_the_next_banner_are_lines(own_front: Front) -> None:
    with logged() as lines:
        own_front.command("!die")
        own_front.await_ready()
        until(lambda: lines.objects("start"), "the banner of the next engine")
    (death,) = lines.objects("supervisor")
    assert death["level"] == "error"
    assert "the engine ended with exit code 7; a new one starts in 0.5 s" in death["message"]
    assert any(line["message"].startswith("eager") for line in lines.objects("mode"))


def test_what_the_engine_writes_is_lines_of_the_log_before_its_end_is() -> None:
    with logged() as lines, running(exit=3) as front:
        until(lambda: front.state.supervisor.starts > 1, "its end")
    told = [(line["component"], line.get("message", "")) for line in map(json.loads, list(lines.lines))]
    said = told.index(("engine", "as commanded"))
    ended = next(place for place, (_, message) in enumerate(told) if "exit code 3" in message)
    assert said < ended


def mode_lines(*statuses: ModeStatus) -> list[dict[str, Any]]:
    listener = EngineLog(Settings(), {"version": "1", "commit": "abc"}, None)
    with logged() as lines:
        for one in statuses:
            listener.mode(one)
    return lines.objects("mode")


def test_a_mode_is_a_line_when_it_is_ready_with_what_compiling_took() -> None:
    done = status("ready", warmup_seconds=20.0, compile_seconds=[9.0, 10.0], cache="cold")
    (line,) = mode_lines(status("cold"), status("warming"), done, done)
    assert line["level"] == "info"
    assert line["message"].startswith("compiled  ")
    assert "ready; warmed up in 20.0 s; 2 compilations in 19.0 s, cache cold" in line["message"]


def test_a_mode_that_fails_or_compiles_again_is_a_warning() -> None:
    (failed,) = mode_lines(status("failed", detail="RuntimeError: a\nb"))
    assert failed["level"] == "warning"
    assert failed["message"].endswith("failed; RuntimeError: a\nb")
    again = mode_lines(status("ready"), status("ready", recompiles=1))
    assert [line["level"] for line in again] == ["info", "warning"]
