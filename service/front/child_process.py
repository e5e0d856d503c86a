"""A child process of the front: spawned on all cores, watched, and terminated in steps."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from service.front.child_socket import ChildSocket
from service.front.logs.child_output import ChildOutput
from service.protocol.messages import EngineSettings, Stop
from service.protocol.parent_death import owned
from service.protocol.placement import children_on

log = logging.getLogger("launchbound.child_process")

STOP_SECONDS, TERMINATE_SECONDS = 2.0, 1.0
"""How long a child has to end after a Stop, and after a SIGTERM."""

LAST_MESSAGES_SECONDS = 0.02


def module_command(module: str) -> tuple[str, ...]:
    """The command line that runs one of our modules."""
    return sys.executable, "-m", module


async def spawn(
    command: Sequence[str], settings: EngineSettings, cores: set[int], output: ChildOutput
) -> Process:
    """Start a child in a session of its own, so that Ctrl-C reaches the front alone; it ends with the front.

    Its settings are appended as JSON, and what it writes goes to `output`. It may use all of `cores`. It gets
    SIGKILL where the front dies: a suspended one does not handle SIGTERM. Raises OSError where it cannot be
    started.
    """
    argument = msgspec.json.encode(settings).decode()
    with children_on(cores):
        return await asyncio.create_subprocess_exec(
            *owned((*command, argument), signal.SIGKILL),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output.descriptor,
            stderr=output.descriptor,
            start_new_session=True,
        )


def has_ended(pid: int) -> bool:
    """Whether the child `pid` has ended, which the event loop may not have heard of yet.

    Its first thread has; others may still be ending, until when the kernel tells no parent.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:  # reaped already
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


async def watch(name: str, process: Process, socket: ChildSocket, terminate: asyncio.Future[str]) -> str:
    """Wait for the end of the process; kill it once `terminate` has a reason or a message cannot be decoded.

    Returns how it ended, as a sentence. Cancelled, it sends Stop and waits for the process to end.
    """
    exited = asyncio.create_task(process.wait())
    try:
        ends: set[asyncio.Future[Any]] = {exited, terminate, socket.broken}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if exited.done():
            # Its last messages count, and may arrive in the socket a moment later.
            await asyncio.sleep(LAST_MESSAGES_SECONDS)
            socket.drain()
            return f"{name} ended {_how(exited.result())}"
        why = (
            terminate.result()
            if terminate.done()
            else f"sent a message that cannot be decoded ({socket.broken.result()})"
        )
        process.kill()
        await process.wait()
        return f"{name} {why} and was ended"
    except asyncio.CancelledError:
        await _end(name, process, stop_sent=socket.send(msgspec.msgpack.encode(Stop())))
        raise
    finally:
        exited.cancel()


def kill_group(pid: int | None) -> None:
    """Kill a child of `spawn` and all that it has started, such as compilers: it leads a process group."""
    if pid is not None:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


async def _end(name: str, process: Process, stop_sent: bool) -> None:
    """Send SIGTERM, then SIGKILL, each after a timeout; `stop_sent`: wait for the end first."""
    steps = ((STOP_SECONDS if stop_sent else 0.0, signal.SIGTERM), (TERMINATE_SECONDS, signal.SIGKILL))
    for seconds, next_signal in steps:
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
