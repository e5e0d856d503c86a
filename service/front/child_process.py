"""A child process of the front and its life: spawned on all cores, watched, and ended in order."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec

from service.front.child_socket import ChildSocket
from service.protocol.messages import EngineSettings, Stop

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger("launchbound.children")

STOP_SECONDS = 5.0
LAST_WORDS_SECONDS = 0.02
FOLDER_PREFIX = "launchbound-"
"""Of the private folders in which sockets lie."""


def module_command(module: str) -> tuple[str, ...]:
    """The command socket of a child that is one of our modules."""
    return sys.executable, "-m", module


async def spawn(command: Sequence[str], settings: EngineSettings, cores: set[int]) -> Process:
    """Start a child in a session of its own, so that Ctrl-C reaches the front alone.

    Its settings are appended as JSON, and its output goes to our stderr. It may use all of `cores`.
    """
    given = msgspec.json.encode(settings).decode()
    with _on_cores(cores):
        return await asyncio.create_subprocess_exec(
            *command, given, stdin=asyncio.subprocess.DEVNULL, stdout=2, start_new_session=True
        )


async def watch(
    name: str, process: Process, socket: ChildSocket, unwanted: asyncio.Event, why_unwanted: str
) -> str:
    """Wait for the end of the process, and end it where it is `unwanted` or speaks another language.

    Returns how it ended, in words. Cancelled, it has the process stop in order first.
    """
    exited = asyncio.create_task(process.wait())
    given_up = asyncio.create_task(unwanted.wait())
    try:
        ends: set[asyncio.Future[Any]] = {exited, given_up, socket.broken}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if exited.done():
            # Its last words still count, and may be a moment behind in the socket.
            await asyncio.sleep(LAST_WORDS_SECONDS)
            socket.drain()
            return f"{name} ended {_how(exited.result())}"
        why = why_unwanted if given_up.done() else f"sent what is no message ({socket.broken.result()})"
        await _end(name, process, asked=False)
        return f"{name} {why} and was ended"
    except asyncio.CancelledError:
        await _end(name, process, asked=socket.send(msgspec.msgpack.encode(Stop())))
        raise
    finally:
        exited.cancel()
        given_up.cancel()


@contextmanager
def _on_cores(cores: set[int]) -> Iterator[None]:
    """Run the body with this thread allowed on `cores`: a child inherits what its parent's thread may use."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


async def _end(name: str, process: Process, asked: bool) -> None:
    """SIGTERM, then SIGKILL, each where waiting did not help; `asked`: it has been told to stop."""
    patience = ((STOP_SECONDS if asked else 0.0, signal.SIGTERM), (STOP_SECONDS, signal.SIGKILL))
    for seconds, next_signal in patience:
        try:
            await asyncio.wait_for(process.wait(), seconds)
        except TimeoutError:
            log.warning("%s did not end in %.0f s: sending %s", name, seconds, next_signal.name)
            with suppress(ProcessLookupError):  # it may just have ended
                process.send_signal(next_signal)
        else:
            return
    await process.wait()


def _how(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    return f"by signal {-code} ({signal.Signals(-code).name})"
