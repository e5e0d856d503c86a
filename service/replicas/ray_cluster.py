"""Ray and Serve as the command uses them: a cluster of its own, which ends with it, or one that is there."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.exceptions import RayServeException

from service.front.settings import Settings
from service.replicas.actors import NAMESPACE, application, registry_actor
from service.replicas.cluster import ClusterEnded
from service.replicas.count import ReplicaCount
from service.replicas.local_ray import RayNotStarted, local_ray
from service.replicas.options import Share
from service.replicas.registry import View

APPLICATION = "launchbound"


class ClusterError(RuntimeError):
    """Ray cannot be used as asked; the message has the remedy."""


@dataclass(frozen=True, slots=True)
class RayCluster:
    """A connection to Ray; `own` where it began with this process."""

    own: bool
    address: str
    registry: Any
    engine_command: Sequence[str] | None

    def resources(self) -> dict[str, float]:
        """What the nodes have in all, by Ray's names."""
        with _end_told():
            return dict(ray.cluster_resources())

    def open_proxy(self, host: str, port: int) -> str:
        """Start Serve with its proxy there; returns the URL of its proxy, of the one that runs if it does."""
        # Requests end by the replicas' own timeout.
        options = {"host": host, "port": port, "request_timeout_s": None}
        with _end_told():
            serve.start(
                proxy_location="HeadOnly", http_options=options, logging_config={"log_level": "WARNING"}
            )
            client = _get_global_client()
        if client is None:
            raise ClusterEnded("Serve did not start")
        http = client.http_config
        return f"http://[{http.host}]:{http.port}" if ":" in http.host else f"http://{http.host}:{http.port}"

    def deploy(self, settings: Settings, count: ReplicaCount, share: Share, command: str) -> None:
        """Begin to run replicas; those of an earlier command are replaced one after another."""
        replicas = application(settings, count, share, command, self.engine_command)
        with _end_told():
            target = serve.RunTarget(target=replicas, name=APPLICATION)
            serve.run_many([target], wait_for_applications_running=False)

    def trouble(self) -> str | None:
        """What keeps Serve from running the replicas as told; None where nothing does."""
        with _end_told():
            found = serve.status().applications.get(APPLICATION)
        if found is None or found.status not in ("DEPLOY_FAILED", "UNHEALTHY"):
            return None
        return "; ".join(one.message for one in found.deployments.values() if one.message) or found.message

    def settled(self) -> bool:
        """Whether Serve has as many replicas as it wants, all of the newest settings."""
        with _end_told():
            found = serve.status().applications.get(APPLICATION)
        return found is not None and found.status == "RUNNING"

    def view(self) -> View:
        """The registry, without those that ended before they could say so."""
        with _end_told():
            seen: View = ray.get(self.registry.view.remote())
            alive = {actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)}
            if gone := [replica.actor for replica in seen.replicas if replica.actor not in alive]:
                ray.get(self.registry.remove.remote(gone))
                seen = ray.get(self.registry.view.remote())
        return seen

    def begin(self, command: str) -> None:
        """As the registry."""
        with _end_told():
            ray.get(self.registry.begin.remote(command))

    def complete(self, command: str) -> None:
        """As the registry."""
        with _end_told():
            ray.get(self.registry.complete.remote(command))

    def give_up(self, command: str) -> None:
        """As the registry."""
        with _end_told():
            ray.get(self.registry.give_up.remote(command))

    def remove(self, command: str) -> None:
        """End the replicas once what they run has ended. Serve and the registry stay, for other commands."""
        with _end_told():
            serve.delete(APPLICATION)
            ray.get(self.registry.leave.remote(command))


@contextmanager
def _end_told() -> Iterator[None]:
    """Raises ClusterEnded for what Ray and Serve raise where they, or an actor of theirs, have gone."""
    try:
        yield
    except (ray.exceptions.RayError, RayServeException, ConnectionError) as error:
        raise ClusterEnded((str(error).splitlines() or [type(error).__name__])[0]) from error


@contextmanager
def connected(
    address: str | None, forward_log: bool, engine_command: Sequence[str] | None = None
) -> Iterator[RayCluster]:
    """Ray at `address`, else on this machine alone until the block ends. Raises ClusterError.

    `forward_log`: what the replicas log on standard error appears on that of this process.
    """
    # It tells of what the command tells itself.
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    with ExitStack() as stack:
        try:
            at = address or stack.enter_context(local_ray())
            ray.init(address=at, namespace=NAMESPACE, log_to_driver=forward_log, logging_level=logging.ERROR)
        except RayNotStarted as error:
            raise ClusterError(str(error)) from error
        except (ConnectionError, ray.exceptions.RayError) as error:
            raise ClusterError(f"no Ray at {address}: {error}; start one, or leave out --address") from error
        stack.callback(ray.shutdown)
        gcs = ray.get_runtime_context().gcs_address
        yield RayCluster(address is None, gcs, registry_actor(), engine_command)
