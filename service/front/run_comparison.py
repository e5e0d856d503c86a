"""Compares two sweeps by `launchbound compare`, as a process: the front imports nothing of the load tests."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from pathlib import Path

import msgspec

from service.front.errors import LaunchboundError
from service.protocol.parent_death import owned

COMMAND = (sys.executable, "-m", "launchbound", "compare", "--json")
EXIT_BAD_INPUT = 2
RETRY_SECONDS = 5
PREFIX = "launchbound: "


class ComparisonBusy(LaunchboundError):
    """Two sweeps are being compared; it is done one pair at a time."""

    status = 409
    default_type = "comparison_busy"


class NotComparable(LaunchboundError):
    """`launchbound compare` refuses these two sweeps; the message is its own."""

    status = 422
    default_type = "not_comparable"


class RunComparison:
    """One comparison at a time: each reads every row of two sweeps."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._command = tuple(command)
        self._busy = False

    async def compare(self, before: Path, after: Path, force: bool) -> bytes:
        """The document of `launchbound compare`, its sides by name. Cancelled, it ends the process.

        Raises ComparisonBusy, NotComparable with the command's message, or LaunchboundError where it fails.
        """
        if self._busy:
            message = "another comparison is under way; they run one at a time"
            raise ComparisonBusy(message, retry_after_seconds=RETRY_SECONDS)
        self._busy = True
        try:
            options = ["--force"] if force else []
            return _named(await self._run([*options, "--", str(before), str(after)]), before, after)
        finally:
            self._busy = False

    async def _run(self, arguments: Sequence[str]) -> bytes:
        process = await asyncio.create_subprocess_exec(
            *owned((*self._command, *arguments)),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,
        )
        try:
            output, errors = await process.communicate()
        finally:
            await _end(process)
        if process.returncode == 0:
            return output
        message = (errors.decode(errors="replace").strip().splitlines() or ["it gave no reason"])[-1]
        if process.returncode == EXIT_BAD_INPUT:
            raise NotComparable(message.removeprefix(PREFIX))
        raise LaunchboundError(f"launchbound compare ended with {process.returncode}: {message}")


async def _end(process: Process) -> None:
    """Kill the process where it still runs: nobody waits for its answer."""
    if process.returncode is None:
        process.kill()
        await process.wait()


def _named(output: bytes, before: Path, after: Path) -> bytes:
    """The document with the sweeps' names in place of where they lie on this machine."""
    document = msgspec.json.decode(output)
    for side, folder in (("before", before), ("after", after)):
        document[side]["path"] = folder.name
    return msgspec.json.encode(document)
