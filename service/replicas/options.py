"""What Serve is told about the deployment: placement, queues, health, draining and scaling."""

from __future__ import annotations

from typing import Any

import msgspec

from service.front.settings import Settings
from service.replicas.count import ReplicaCount

REQUESTS_AIMED_AT = 5
"""Unfinished requests of a replica that Serve scales towards: four that wait, as in deploy/kubernetes, and
the one that runs."""

HEALTH_PERIOD_SECONDS = 10.0
"""Between two health checks. Serve replaces a replica after three in a row that failed."""

ROUTERS_TOLD_SECONDS = 2.0
"""How long a replica that is to end goes on taking requests: until every proxy knows of it."""

STOP_SECONDS = 10.0
"""For an engine that is asked, then told, then killed, and the processes around it."""


class Share(msgspec.Struct, frozen=True):
    """What one replica has of its node: `cores`, and a GPU or none."""

    cores: int
    gpu: bool


def deployment_options(settings: Settings, count: ReplicaCount, share: Share) -> dict[str, Any]:
    """Options of `serve.deployment`.

    A replica refuses what its own queue does not hold, with 429 and `Retry-After`: Serve hands it more than
    that. What waits in a proxy, as while no replica runs, is bounded by `max_connections`. A replica that is
    to end has as long as its longest request may take.
    """
    return {
        "name": "front",
        **_number(count),
        "ray_actor_options": {"num_cpus": share.cores, "num_gpus": int(share.gpu)},
        "max_ongoing_requests": 2 * settings.max_queue + 16,
        "max_queued_requests": settings.max_connections,
        "health_check_period_s": HEALTH_PERIOD_SECONDS,
        "health_check_timeout_s": 3 * HEALTH_PERIOD_SECONDS,
        "graceful_shutdown_wait_loop_s": ROUTERS_TOLD_SECONDS,
        "graceful_shutdown_timeout_s": settings.request_timeout_seconds
        + settings.drain_seconds
        + ROUTERS_TOLD_SECONDS
        + STOP_SECONDS,
        # Every request has a line in the replica's own log.
        "logging_config": {"enable_access_log": False, "log_level": "WARNING"},
    }


def _number(count: ReplicaCount) -> dict[str, Any]:
    if not count.scales:
        return {"num_replicas": count.least}
    scaling = {
        "min_replicas": count.least,
        "initial_replicas": count.least,
        "max_replicas": count.most,
        "target_ongoing_requests": REQUESTS_AIMED_AT,
    }
    return {"autoscaling_config": scaling}


def cores_each(wanted: int | None, count: ReplicaCount, cores: int | None) -> int:
    """Cores of each replica: those `wanted`, else two, one for its engine and one for its front.

    `cores`: how many there are for all of them, of which a small machine gives each one; None: not known.
    Raises ValueError where there are not enough.
    """
    if cores is None:
        return wanted or 2
    each = wanted or max(1, min(2, cores // count.most))
    if each * count.most > cores:
        raise ValueError(
            f"{count.most} replicas of {each} cores each need {each * count.most} cores, and "
            f"there are {cores}: ask for fewer by --replicas or --replica-cpus"
        )
    return each
