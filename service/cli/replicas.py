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
    from service.replicas.count import ReplicaCount
    from service.replicas.joining import NotJoined, joining
    from service.replicas.local_ray import environment_for

    os.environ.update(environment_for(address))
    try:
        count = ReplicaCount.parse(replicas)
        if address is not None:
            os.environ.update(joining(address))
        from service.replicas.command import serve_replicas
    except (ValueError, NotJoined) as error:
        bad_input(error)
    except ModuleNotFoundError as error:
        bad_input(f"{error.name} is not installed here: install it with `pip install launchbound[ray]`")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return serve_replicas(settings, count, cpus, address, targets, ended_in_order)
