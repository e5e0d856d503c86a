"""`serve --replicas`: what has to be so before Ray is imported."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from service.cli.options import bad_input
from service.cli.signals import ended_in_order


def serve_on_ray(
    settings: Any,  # noqa: ANN401 - as `settings_from` returns them
    replicas: str,
    cpus: int | None,
    address: str | None,
    targets: Path | None,
) -> int:
    """The exit code of serving `settings` as `replicas`, with `cpus` each, on the Ray at `address`."""
    from service.replicas.cluster import ClusterError, environment

    try:
        os.environ.update(environment(address))
        from service.replicas.application import replica_count, serve_replicas

        count = replica_count(replicas)
    except (ValueError, ClusterError) as error:
        bad_input(error)
    except ModuleNotFoundError as error:
        bad_input(f"{error.name} is not installed here: install it with `pip install launchbound[ray]`")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return serve_replicas(settings, count, cpus, address, targets, ended_in_order)
