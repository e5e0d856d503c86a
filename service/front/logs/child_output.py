"""What a child process writes becomes lines of the log, in its form: warnings of libraries, tracebacks."""

from __future__ import annotations

import asyncio
import logging
import os

READ_BYTES = 65_536
MOST_LINE_BYTES = 8192
"""A longer line is cut in two."""


class ChildOutput:
    """A pipe to be a child's output, and lines of `component` for what comes out of it.

    What begins with `launchbound`, our own words of what is wrong, is a warning; the rest is information. A
    pipe of our own, because asyncio's is waited for, and the child's own children may keep that open.
    """

    def __init__(self, component: str) -> None:
        self._log = logging.getLogger(f"launchbound.{component}")
        self._prefixes = (f"launchbound {component}: ", "launchbound: ")
        self._unfinished = b""
        self._reads, self.descriptor = os.pipe()
        os.set_blocking(self._reads, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._reads, self._read)

    def close(self) -> None:
        """The child has ended: log what is still in the pipe, and end it."""
        self._loop.remove_reader(self._reads)
        while self._read():
            continue
        self._take(b"\n" if self._unfinished else b"")
        os.close(self._reads)
        os.close(self.descriptor)

    def _read(self) -> bool:
        """Take what has arrived; returns whether that was anything."""
        try:
            data = os.read(self._reads, READ_BYTES)
        except BlockingIOError:
            return False
        self._take(data)
        return bool(data)

    def _take(self, data: bytes) -> None:
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        while len(self._unfinished) > MOST_LINE_BYTES:
            lines.append(self._unfinished[:MOST_LINE_BYTES])
            self._unfinished = self._unfinished[MOST_LINE_BYTES:]
        for line in lines:
            self._tell(line.decode(errors="replace").rstrip())

    def _tell(self, line: str) -> None:
        for prefix in self._prefixes:
            if line.startswith(prefix):
                self._log.warning("%s", line.removeprefix(prefix))
                return
        if line:
            self._log.info("%s", line)
