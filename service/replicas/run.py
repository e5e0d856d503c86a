"""One run of `serve --replicas`: deploys, keeps the targets of Prometheus true, and ends what is its own."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from time import monotonic, sleep

from service.front.access import exposure
from service.front.server import bound_socket
from service.front.settings import Settings
from service.replicas.cluster import Cluster
from service.replicas.count import ReplicaCount
from service.replicas.options import Share, cores_each
from service.replicas.registry import ReplicaPlace, View
from service.replicas.replica_front import START_SECONDS
from service.replicas.targets import TargetsFile

log = logging.getLogger("launchbound.replicas")

LOOK_SECONDS = 0.5


class NotStarted(RuntimeError):
    """The replicas did not become ready; the message says why."""


class ReplicasRun:
    """`cores` of each replica, None: as many as usual. `wait` passes the time between two looks."""

    def __init__(
        self,
        settings: Settings,
        count: ReplicaCount,
        cores: int | None,
        cluster: Cluster,
        targets: TargetsFile,
        wait: Callable[[float], None] = sleep,
    ) -> None:
        self._settings, self._count, self._cores = settings, count, cores
        self._cluster, self._targets, self._wait = cluster, targets, wait
        self.command = secrets.token_hex(8)

    def serve(self) -> int:
        """Until a signal (KeyboardInterrupt) or until another command has taken over; returns exit code 0.

        Raises ValueError for what cannot be placed here, NotStarted, and ClusterEnded.
        """
        share = self._share()
        proxy = self._open_proxy()
        if warning := exposure(self._settings):
            log.warning(warning)
        try:
            self._deploy(share)
            print(f"launchbound: serving on {proxy}", flush=True)
            self._say()
            self._follow(share)
        except KeyboardInterrupt:
            log.info("ending the replicas once what they run has ended")
        finally:
            self._end()
        return 0

    def _share(self) -> Share:
        resources = self._cluster.resources()
        gpus = resources.get("GPU", 0.0)
        gpu = self._settings.device == "cuda" or (self._settings.device == "auto" and gpus > 0)
        if gpu and gpus < self._count.most:
            raise ValueError(
                f"{self._count.most} replicas on a GPU each, and Ray has {gpus:.0f} GPUs: ask for fewer, or "
                "serve with --device cpu"
            )
        return Share(cores_each(self._cores, self._count, int(resources.get("CPU", 0))), gpu)

    def _open_proxy(self) -> str:
        host, port = self._settings.host, self._settings.port
        if self._cluster.own or port == 0:
            try:
                listener = bound_socket(host, port)
            except OSError as error:
                raise ValueError(f"cannot listen on {host}:{port}: {error}; choose another --port") from error
            # Serve's proxy takes a number, and binds it in a moment.
            port = listener.getsockname()[1]
            listener.close()
        return self._cluster.open_proxy(host, port)

    def _deploy(self, share: Share) -> None:
        """Returns when this command's replicas serve, and it owns them, or when another one deploys.

        Raises NotStarted.
        """
        self._cluster.begin(self.command)
        self._cluster.deploy(self._settings, self._count, share, self.command)
        ends = monotonic() + START_SECONDS
        while True:
            seen = self._look()
            if seen.deploying != self.command:
                return
            if len(self._mine(seen)) >= self._count.least and self._cluster.settled():
                self._cluster.complete(self.command)
                return
            if (failure := seen.failures.get(self.command)) is not None:
                raise NotStarted(failure)
            if (trouble := self._cluster.trouble()) is not None:
                raise NotStarted(f"a replica did not start: {trouble.strip().splitlines()[-1]}")
            if monotonic() > ends:
                raise NotStarted(
                    f"not ready after {START_SECONDS:.0f} s: are there as many free cores and GPUs?"
                )
            self._wait(LOOK_SECONDS)

    def _follow(self, share: Share) -> None:
        """Until another command owns the replicas; where the cluster is this one's, until a signal.

        There one that had taken over and ends leaves no replicas: this command then deploys its own again.
        """
        told = False
        while True:
            seen = self._look()
            taken_over = seen.owner != self.command
            if taken_over and not self._cluster.own:
                log.info("another command has taken over these replicas")
                return
            if taken_over and not told:
                log.info("another command has taken over; this one stays, as the cluster ends with it")
            told = taken_over
            if seen.restore and not taken_over:
                self._deploy_again(share, "a replacement of these replicas was given up")
            elif seen.owner is None and seen.deploying is None:
                self._deploy_again(share, "the command that had taken over has ended its replicas")
            self._wait(LOOK_SECONDS)

    def _deploy_again(self, share: Share, why: str) -> None:
        log.warning("%s: deploying those of this command again", why)
        self._deploy(share)
        log.info("the replicas of this command serve again")

    def _look(self) -> View:
        """The registry now, with the file as it says."""
        seen = self._cluster.view()
        self._targets.write(seen.replicas)
        return seen

    def _mine(self, seen: View) -> list[ReplicaPlace]:
        return [replica for replica in seen.replicas if replica.owner == self.command]

    def _say(self) -> None:
        for replica in self._mine(self._look()):
            cores = ",".join(map(str, replica.cores))
            at = f"http://{replica.address}"
            log.info("replica %s at %s on core %s of %s", replica.name, at, cores, replica.node)
        log.info("targets for Prometheus (file_sd_configs): %s", self._targets.path)
        log.info(
            "to replace these without a pause: launchbound serve --replicas N --address %s",
            self._cluster.address,
        )

    def _end(self) -> None:
        """End the replicas; but not those that another command owns, or is about to own."""
        if not self._cluster.own:
            seen = self._cluster.view()
            if seen.deploying == self.command and seen.owner not in (None, self.command):
                self._cluster.give_up(self.command)
                return
            if seen.deploying not in (None, self.command) or seen.owner not in (None, self.command):
                return
        self._cluster.remove(self.command)
        self._targets.write([])
