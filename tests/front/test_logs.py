"""A record is one line, in either form, whatever is in it, and a log that is not read holds nobody."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.front import logs
from service.front.child_process import MOST_LINE_BYTES, ChildOutput
from service.front.launch import read_text
from service.front.logs import (
    BACKLOG_LINES,
    MOST_CHARACTERS,
    PIECE_BYTES,
    JsonFormatter,
    LineHandler,
    TextFormatter,
    one_line,
)
from tests.support.serving import Lines, logged

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


@given(ANY_TEXT)
def test_text_is_one_line_with_its_head_whatever_the_message_is(text: str) -> None:
    line = TextFormatter().format(record("%s", "launchbound.api", text))
    assert is_plain(line)
    line.encode()
    found = read_text(line)
    assert found is not None
    assert (found.level, found.component) == ("info", "api")


@given(ANY_TEXT)
def test_json_is_one_object_on_one_line_whatever_the_message_is(text: str) -> None:
    line = JsonFormatter().format(record("%s", "launchbound.api", text))
    assert is_plain(line)
    told = json.loads(line.encode())
    assert set(told) == {"time", "level", "component", "message"}
    assert (told["level"], told["component"]) == ("info", "api")
    assert told["time"].endswith("+00:00")


@given(st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp", "Cf")), max_size=MOST_CHARACTERS))
def test_harmless_text_is_left_as_it_is(text: str) -> None:
    assert one_line(text) == text


def test_no_exception_can_pretend_to_be_another_line() -> None:
    head, *trace = TextFormatter().format(raised(ValueError(f"{NASTY}\n{FORGED}"))).split("\n")
    assert read_text(head) is not None
    assert trace
    assert all(line.startswith("    ") and is_plain(line) and read_text(line) is None for line in trace)


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
        (b"launchbound: a trace was not kept", "warning", "a trace was not kept"),
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
