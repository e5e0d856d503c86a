"""Writes the log's lines to a descriptor without ever waiting for who reads them."""

from __future__ import annotations

import logging
import os
import select
from collections import deque

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
