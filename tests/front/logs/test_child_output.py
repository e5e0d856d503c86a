"""What a child writes arrives as lines, however it is cut into pieces."""

from __future__ import annotations

import asyncio
import os
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.front.child_process import MOST_LINE_BYTES, ChildOutput
from tests.support.serving import Lines, logged


def told(pieces: list[bytes]) -> Lines:
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
    return [line["message"] for line in told(pieces).objects("engine")]


@given(st.binary(max_size=500), st.lists(st.integers(0, 500), max_size=4))
def test_a_line_does_not_depend_on_the_pieces_that_it_came_in(data: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[begin:end] for begin, end in pairwise(places)]
    whole = messages([data])
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
    (found,) = told([line + b"\n"]).objects("engine")
    assert (found["level"], found["message"]) == (level, message)


def test_a_line_without_an_end_is_logged_when_the_child_has_ended() -> None:
    assert messages([b"Segmentation fault"]) == ["Segmentation fault"]


def test_a_line_that_never_ends_is_cut() -> None:
    cut = messages([b"x" * 1000] * 20)
    assert len(cut) > 1
    assert all(len(message) <= MOST_LINE_BYTES for message in cut)
