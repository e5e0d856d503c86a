"""Connects to a Ray cluster, or starts one on loopback that ends with this process.

Ray reads its environment when it is imported: nothing here imports it before `environment` is set. Run as a
program, this file is the process that holds the Ray of a command.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

OBJECT_STORE_BYTES = 100_000_000
"""Of a Ray started here: requests and answers do not pass through it, and larger results spill to disk."""

STARTS = 4
TOO_SLOW = "timed out during startup"
"""Ray gives a node a fixed 30 s to start, which may pass on a busy machine: only then it is started again."""

ANSWER_SECONDS = 10.0
FIRST_CALL = "/ray.rpc.NodeInfoGcsService/GetClusterId"
"""What Ray itself calls first. Its request is a message without required fields."""

NAMESPACE = "launchbound"
ON_LOOPBACK = {
    # All of Ray's ports on 127.0.0.1. Ray replaces a given 127.0.0.1 by another address of the machine,
    # unless this says that no other machine will join.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # By default engines run at nice 15, and whatever else runs here makes them slow.
    "RAY_worker_niceness": "0",
    # Proxy and replica talk by gRPC, and each handles a request in one thread: by default a quarter slower.
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    # By default calls to a Ray that has ended wait a minute.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
}

STARTED = "ray: "


class ClusterError(RuntimeError):
    """There is no Ray to run on; the message has the remedy."""


def environment(address: str | None) -> dict[str, str]:
    """What a process has set before it imports Ray to join it at `address`; None: to start one of its own.

    Raises ClusterError, and ModuleNotFoundError without the package of the extra `ray`.
    """
    # By default Ray shows one of several lines that differ in numbers alone.
    found = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": os.environ.get("RAY_DEDUP_LOGS", "0")}
    if address is None:
        return {**found, **ON_LOOPBACK, "RAY_AUTH_MODE": "token"}
    if address == "auto":  # Ray finds it, and shows the token where there is one
        return found
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or "/" in host:
        raise ClusterError(f"{address} is no address of a Ray cluster: give HOST:PORT, or auto")
    if os.environ.get("RAY_USE_TLS", "0") in ("1", "true", "True"):  # its certificates say who may join
        return found
    local, has_token = is_loopback(host.strip("[]")), _asks_for_token(address)
    if not local and not has_token:
        raise ClusterError(
            f"Ray at {address} runs without a token, and whoever reaches it runs programs on all of its "
            "nodes: start it with one (docs/replicas.md)"
        )
    mode = "token" if has_token else "disabled"
    return {**found, **(ON_LOOPBACK if local else {}), "RAY_AUTH_MODE": mode}


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _asks_for_token(address: str) -> bool:
    """Whether Ray answers only who shows a token: one without cannot be joined with one.

    Raises ClusterError where no Ray answers; Ray itself would try for minutes.
    """
    import grpc

    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        ask: Any = channel.unary_unary(FIRST_CALL)
        try:
            ask(b"", timeout=ANSWER_SECONDS)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                return True
            raise ClusterError(
                f"no Ray answers at {address} ({error.code().name.lower()}): start one there by `ray start "
                "--head`, give the address that it prints, or leave out --address"
            ) from error
    return False


@contextmanager
def connected(
    address: str | None, labels: Mapping[str, str] | None = None, log_to_driver: bool = False
) -> Iterator[ModuleType]:
    """The module `ray`, connected to Ray at `address`, None: to one of its own with `labels`, in the block.

    `environment(address)` is set before. Raises ClusterError.
    """
    import ray

    with ExitStack() as stack:
        at = address or stack.enter_context(local_ray(labels or {}))
        options: dict[str, Any] = {"log_to_driver": log_to_driver, "logging_level": logging.ERROR}
        try:
            ray.init(address=at, namespace=NAMESPACE, **options)
        except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            reason = str(error.__cause__ or error).strip().partition("\n")[0]
            raise ClusterError(
                f"Ray at {at} is not joined: {reason}; where it asks for a token, copy ~/.ray/auth_token of "
                "the node where `ray start --head` ran to this user's home"
            ) from error
        stack.callback(ray.shutdown)
        yield ray


@contextmanager
def local_ray(labels: Mapping[str, str]) -> Iterator[str]:
    """The address of a Ray on 127.0.0.1 until the block ends. Raises ClusterError.

    A signal to the command's process group must not end Ray before what runs on it. It ends when its standard
    input does, so also where the command is killed.
    """
    for _ in range(STARTS):
        with subprocess.Popen(
            # By its file: a folder `service` where the command runs is another one.
            [sys.executable, "-P", __file__, json.dumps(dict(labels))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment(None)},
            start_new_session=True,
        ) as process:
            assert process.stdout is not None
            last = "it wrote nothing"
            for line in process.stdout:
                if line.startswith(STARTED):
                    yield line.removeprefix(STARTED).strip()
                    return
                last = line.strip() or last
        if TOO_SLOW not in last:
            break
    raise ClusterError(f"Ray did not start: {last}")


def main() -> None:
    """Start Ray with the labels that follow, say where it is, and end it with the standard input."""
    import ray

    with tempfile.TemporaryDirectory(prefix="lb-ray-", ignore_cleanup_errors=True) as folder:
        try:
            ray.init(
                address="local",
                num_cpus=len(os.sched_getaffinity(0)),
                labels=json.loads(sys.argv[1]),
                include_dashboard=False,  # whose job interface runs what anyone sends it
                object_store_memory=OBJECT_STORE_BYTES,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _temp_dir=folder,
            )
        except Exception as error:  # noqa: BLE001 - Ray raises no class of its own
            print(" ".join(str(error).split()), flush=True)
            raise SystemExit(1) from None
        print(STARTED + ray.get_runtime_context().gcs_address, flush=True)
        sys.stdin.read()
        ray.shutdown()


if __name__ == "__main__":
    main()
