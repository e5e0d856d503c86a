"""`serve --replicas`: connects to Ray, and says of what goes wrong what to do about it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from service.front.logs import set_up
from service.front.settings import Settings
from service.replicas.cluster import ClusterEnded
from service.replicas.count import ReplicaCount
from service.replicas.ray_cluster import ClusterError, connected
from service.replicas.run import NotStarted, ReplicasRun
from service.replicas.targets import TargetsFile

log = logging.getLogger("launchbound.replicas")

TARGETS_FILE = "replicas.targets.json"
EXIT_FAILED, EXIT_BAD_INPUT = 1, 2

InOrder = Callable[[], AbstractContextManager[None]]
"""A block in which the signals that end a command raise KeyboardInterrupt."""


def serve_replicas(
    settings: Settings,
    count: ReplicaCount,
    cores: int | None,
    address: str | None,
    targets: Path | None,
    in_order: InOrder,
    engine_command: Sequence[str] | None = None,
) -> int:
    """Run until a signal, or until another command has taken over; returns the exit code.

    `cores` of each replica, None: as many as usual; `address` of the cluster, None: one of its own; `targets`
    for Prometheus, None: in the cache folder; `engine_command` replaces the command line of the engines.
    0; 2 where the settings cannot be used, with the reason in the log; 1 where the cluster ended.
    """
    set_up(settings.log_format)
    if settings.engine_cpus is not None or settings.front_cpus is not None:
        return _ended(
            "ENGINE_CPUS and FRONT_CPUS are of one service: give every replica cores by --replica-cpus"
        )
    try:
        file = TargetsFile(targets or settings.cache_folder / TARGETS_FILE)
        # Lines of JSON would get Ray's prefix.
        forward = settings.log_format == "text"
        # In order twice: Ray sets handlers of its own when it is connected to.
        with in_order(), connected(address, forward, engine_command) as cluster, in_order():
            return ReplicasRun(settings, count, cores, cluster, file).serve()
    except KeyboardInterrupt:
        return 0
    except ClusterEnded as error:
        return _ended(f"the cluster has ended: {error}", EXIT_FAILED)
    except (ClusterError, NotStarted, ValueError, OSError) as error:
        return _ended(str(error))


def _ended(message: str, code: int = EXIT_BAD_INPUT) -> int:
    log.error(message)
    return code
