"""A client that reads on gets all of a large answer, however long it takes; one that stops is cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from service.front.limits import UnreadAnswer

SECONDS = 30.0


class Clock:
    """A loop of which only the timers are there; one is set at a time."""

    def __init__(self) -> None:
        self.due: Callable[[], None] | None = None

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Clock:
        assert seconds == SECONDS
        self.due = callback
        return self

    def cancel(self) -> None:
        self.due = None

    def run_out(self) -> None:
        """The timer's time is up."""
        due, self.due = self.due, None
        assert due is not None
        due()


class Transport:
    """So many bytes are unwritten."""

    def __init__(self) -> None:
        self.unwritten = 1_000_000
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        return self.unwritten

    def abort(self) -> None:
        self.aborted = True


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def transport() -> Transport:
    return Transport()


@pytest.fixture
def unread(clock: Clock, transport: Transport) -> UnreadAnswer:
    """An answer of which some is unwritten."""
    loop = cast(asyncio.AbstractEventLoop, clock)
    paused = UnreadAnswer(loop, cast(asyncio.Transport, transport), SECONDS)
    paused.paused()
    return paused


@pytest.mark.usefixtures("unread")
def test_a_reader_that_takes_some_of_it_each_time_is_not_cut_off(clock: Clock, transport: Transport) -> None:
    for _ in range(5):
        transport.unwritten -= 100_000
        clock.run_out()
    assert not transport.aborted


@pytest.mark.usefixtures("unread")
def test_a_reader_that_stops_is_cut_off_at_the_next_look(clock: Clock, transport: Transport) -> None:
    transport.unwritten -= 100_000
    clock.run_out()
    clock.run_out()
    assert transport.aborted
    assert clock.due is None


def test_nothing_is_looked_at_once_it_is_taken(clock: Clock, unread: UnreadAnswer) -> None:
    unread.over()
    assert clock.due is None
