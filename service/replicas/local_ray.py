"""A Ray of this machine alone: as a program, the process that starts it and ends with it.

It is a process of its own, and leads a session, so that a signal to the command's process group (Ctrl-C, a
supervisor) does not reach Ray, which has to be there while the replicas end.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import NoReturn

from service.protocol.parent_death import owned
from service.replicas.joining import MODE
from service.replicas.patience import TooBusy, patiently

OBJECT_STORE_BYTES = 100_000_000
"""Requests and answers do not go through it."""

LOG_ONCE = "RAY_DEDUP_LOGS"
"""Unless it is 0, Ray shows one of the lines that several replicas log and that differ in numbers alone."""

WITHOUT_STATISTICS = {"RAY_USAGE_STATS_ENABLED": "0"}

ON_THIS_MACHINE = {
    **WITHOUT_STATISTICS,
    # All of Ray's ports on 127.0.0.1, that of the agent's jobs too. Ray replaces a given 127.0.0.1 by another
    # address of the machine, unless it is told so that no other machine will join.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Whoever connects shows the token that Ray keeps in this user's home.
    MODE: "token",
    # Else engines run at nice 15, and whatever else runs here makes them slow.
    "RAY_worker_niceness": "0",
    # Proxy and replica talk by gRPC, and each handles a request in one thread. With Ray's defaults, by actor
    # calls and with threads in between, the proxy adds a quarter more.
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    # A request's body goes with it: else the replica calls back to the proxy for it.
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "service.replicas.body_ahead.middlewares",
    # A Ray that has been ended by somebody is waited for, by calls to it, a minute.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
}

STARTED = "ray: "


class RayNotStarted(RuntimeError):
    """The message is the last line that Ray wrote."""


@contextmanager
def local_ray() -> Iterator[str]:
    """The address of a Ray on 127.0.0.1 until the block ends. Raises RayNotStarted."""
    command = owned([sys.executable, "-m", "service.replicas.local_ray"])
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **ON_THIS_MACHINE},
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        last = ""
        for line in process.stdout:
            if line.startswith(STARTED):
                yield line.removeprefix(STARTED).strip()
                return
            last = line.strip() or last
        raise RayNotStarted(f"Ray did not start: {last or 'it wrote nothing'}")
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def environment_for(address: str | None) -> dict[str, str]:
    """What a process that connects to Ray at `address`, None: to `local_ray`, has set when it imports it.

    One that joins a Ray sets what `joining` says besides.
    """
    log = {LOG_ONCE: os.environ.get(LOG_ONCE, "0")}
    if address is None:
        return {**ON_THIS_MACHINE, **log}
    here = address.rpartition(":")[0] in ("127.0.0.1", "localhost")
    found = ON_THIS_MACHINE if here else WITHOUT_STATISTICS
    return {**{name: value for name, value in found.items() if name != MODE}, **log}


def main() -> None:
    """Start Ray, say where, and wait for SIGTERM, which the end of the parent sends too."""
    signal.signal(signal.SIGTERM, _exit)
    import ray

    with tempfile.TemporaryDirectory(prefix="launchbound-ray-", ignore_cleanup_errors=True) as folder:
        start = partial(
            ray.init,
            address="local",
            num_cpus=len(os.sched_getaffinity(0)),
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=folder,
        )
        try:
            patiently(start)
        except TooBusy as error:
            print(error, flush=True)
            raise SystemExit(1) from None
        signal.signal(signal.SIGTERM, _exit)  # Ray has set its own
        try:
            print(STARTED + ray.get_runtime_context().gcs_address, flush=True)
            while True:
                signal.pause()
        finally:
            ray.shutdown()


def _exit(number: int, _: FrameType | None) -> NoReturn:
    # The command's end sends one as well as the command itself: Ray has to be ended meanwhile.
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(0)


if __name__ == "__main__":
    main()
