"""What runs in Ray's own processes: the registry as a named actor, and the deployment of a replica."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import ray
from ray import serve

from service.front.logs import set_up
from service.front.settings import Settings
from service.replicas.count import ReplicaCount
from service.replicas.options import Share, deployment_options
from service.replicas.registry import Registry, ReplicaPlace
from service.replicas.replica_front import ReplicaFront

NAMESPACE = "launchbound"
REGISTRY = "replicas"


def registry_actor() -> Any:  # noqa: ANN401 - a handle of Ray, whose methods are made at run time
    """The cluster's registry, made where there is none. It outlives whoever makes it."""
    options = {"name": REGISTRY, "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
    return ray.remote(num_cpus=0)(Registry).options(**options).remote()


class Replica:
    """What Serve asks of a replica beside its requests."""

    app: ReplicaFront
    """Set by `serve.ingress` once the replica's builder has made it."""

    async def check_health(self) -> None:
        """Raises Unhealthy, three times in a row where Serve is to replace this replica."""
        self.app.check()


def application(
    settings: Settings,
    count: ReplicaCount,
    share: Share,
    owner: str,
    engine_command: Sequence[str] | None = None,
) -> serve.Application:
    """The application to deploy: replicas of `settings` that belong to the command `owner`."""

    def build() -> ReplicaFront:
        return replica_front(settings, share, owner, engine_command)

    deployment = serve.deployment(**deployment_options(settings, count, share))
    return deployment(serve.ingress(build)(Replica)).bind()


def replica_front(
    settings: Settings, share: Share, owner: str, engine_command: Sequence[str] | None
) -> ReplicaFront:
    """The front of the replica that this process is."""
    set_up(settings.log_format)
    actor = ray.get_runtime_context().get_actor_name() or ""
    node: str = ray.util.get_node_ip_address()
    registry = registry_actor()

    async def ready(front: ReplicaFront) -> None:
        place = ReplicaPlace(
            actor=actor,
            name=front.name,
            owner=owner,
            node=node,
            address=front.address,
            pid=os.getpid(),
            cores=front.cores,
            gpu=share.gpu,
        )
        await registry.add.remote(place)

    async def ended(_: ReplicaFront) -> None:
        await registry.remove.remote([actor])

    async def failed(reason: str) -> None:
        await registry.failed.remote(owner, reason)

    name = serve.get_replica_context().replica_id.unique_id
    return ReplicaFront(settings, share.cores, node, name, ready, ended, failed, engine_command)
