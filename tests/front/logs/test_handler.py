"""A log that is not read, or cannot be written, holds nobody."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from service.front import logs
from service.front.logs import BACKLOG_LINES, PIECE_BYTES, LineHandler

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


def test_a_line_that_can_be_written_is_written_at_once(pipe: tuple[int, int]) -> None:
    say(made(pipe[1]), "hello")
    assert read(pipe[0]) == ["hello"]


def test_a_record_that_makes_no_line_is_a_line_that_says_so(pipe: tuple[int, int]) -> None:
    bad = logging.LogRecord("uvicorn.error", logging.INFO, __file__, 1, "%d", ("no number",), None)
    made(pipe[1]).handle(bad)
    (line,) = read(pipe[0])
    assert line.startswith("a line of uvicorn.error could not be made: %d format")


def test_a_line_longer_than_a_piece_arrives_whole(pipe: tuple[int, int]) -> None:
    text = "".join(map(str, range(PIECE_BYTES)))
    say(made(pipe[1]), text)
    assert read(pipe[0]) == [text]


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


def test_closing_writes_what_was_kept(pipe: tuple[int, int]) -> None:
    log = made(pipe[1])
    for _ in range(100):
        say(log, LONG)
    first = len(read(pipe[0]))
    log.close()
    assert first + len(read(pipe[0])) == 100
