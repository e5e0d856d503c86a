"""`serve --replicas`: fronts as replicas of a Ray Serve application, and the command that keeps them."""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import msgspec
import ray
from ray import serve
from ray.serve import Application
from ray.serve.context import _get_global_client
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatus
from starlette.types import ASGIApp

from service.front.access import exposure
from service.front.app import bound_socket
from service.front.logs import set_up
from service.front.settings import Settings
from service.replicas.cluster import NAMESPACE, ClusterError, connected
from service.replicas.front import NotStarted, ReplicaFront

log = logging.getLogger("launchbound.replicas")

APPLICATION = "launchbound"
TARGETS_FILE = "replicas.targets.json"
MOST_REPLICAS = 1000
REQUESTS_AIMED_AT = 5
"""Unfinished requests of a replica that Serve scales towards: four that wait, as in deploy/kubernetes, and
the one that runs."""

HEALTH_PERIOD_SECONDS = 10.0
"""Between two health checks. Serve replaces a replica after three in a row that failed."""

ROUTERS_TOLD_SECONDS = 2.0
"""How long a replica that is to end goes on taking requests: until every proxy knows of it."""

STOP_SECONDS = 10.0
"""For an engine that is asked, then told, then killed, and the processes around it."""

START_SECONDS = 3600.0
"""For all replicas: each loads its model and compiles, and may wait for cores that another one has."""

GIVEN_UP = (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY)
LOOK_SECONDS = 0.5
EXIT_FAILED, EXIT_BAD_INPUT = 1, 2

InOrder = Callable[[], AbstractContextManager[None]]
"""A block in which the signals that end a command raise KeyboardInterrupt."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a replica is: `actor` is its name in Ray, `name` the short form that people read.

    `address` is host:port of its own listener, `command` the one that deployed it.
    """

    actor: str
    name: str
    command: str
    node: str
    address: str
    cores: list[int]


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The registry at one moment: `commands`, the newest last, and the one that `deployed` last.

    `failed`: why a replica of a command has not started.
    """

    commands: list[str]
    deployed: str | None
    replicas: list[Place]
    failed: dict[str, str] = {}


class Registry:
    """A named actor: the replicas that are ready, and the commands that want theirs to serve."""

    def __init__(self) -> None:
        self._commands: dict[str, bool] = {}
        self._deployed: str | None = None
        self._replicas: dict[str, Place] = {}
        self._failed: dict[str, str] = {}

    def deploys(self, command: str, stays: bool) -> None:
        """`command` replaces what runs; `stays`: it does not end where another takes over."""
        self._commands[command], self._deployed = stays, command
        self._failed.pop(command, None)

    def fails(self, command: str, why: str) -> None:
        """A replica of `command` has not started."""
        self._failed[command] = why

    def serves(self, command: str) -> None:
        """What `command` has deployed serves: it has taken over."""
        self._commands = {name: stays for name, stays in self._commands.items() if stays or name == command}

    def leaves(self, command: str) -> bool:
        """`command` ends, or gives up. Whether it was the last one; else the one before deploys again."""
        self._commands.pop(command, None)
        return not self._commands

    def add(self, replica: Place) -> None:
        """It is ready."""
        self._replicas[replica.actor] = replica

    def remove(self, actors: list[str]) -> None:
        """They have ended, or are about to."""
        for actor in actors:
            self._replicas.pop(actor, None)

    def view(self) -> View:
        """Everything, replicas in the order of their names."""
        replicas = sorted(self._replicas.values(), key=lambda replica: replica.name)
        return View(
            commands=list(self._commands),
            deployed=self._deployed,
            replicas=replicas,
            failed=dict(self._failed),
        )


def registry() -> Any:  # noqa: ANN401 - a handle of Ray, whose methods are made at run time
    """The cluster's registry, made where there is none. It outlives whoever makes it."""
    options = {"name": "replicas", "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
    return ray.remote(num_cpus=0)(Registry).options(**options).remote()


class Replica:
    """The deployment: what Serve makes, checks and has answer in a process of Ray's."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, settings: Settings, cores: int, command: str, engine_command: Sequence[str] | None
    ) -> None:
        set_up(settings.log_format)
        actor, node = ray.get_runtime_context().get_actor_name() or "", ray.util.get_node_ip_address()
        name, known = serve.get_replica_context().replica_id.unique_id, registry()

        async def ended() -> None:
            await known.remove.remote([actor])

        self._front = ReplicaFront(settings, cores, node, name, ended, engine_command)
        try:
            await self._front.start()
        except NotStarted as error:
            log.error(str(error))
            await known.fails.remote(command, str(error))
            raise
        await known.add.remote(
            Place(
                actor=actor,
                name=name,
                command=command,
                node=node,
                address=self._front.address,
                cores=self._front.cores,
            )
        )

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return self._front

    async def check_health(self) -> None:
        """Raises Unhealthy, three times in a row where Serve is to replace this replica."""
        self._front.check()


def replica_count(text: str) -> tuple[int, int]:
    """The least and the most replicas of '4', or '1-4'. Raises ValueError for anything else."""
    found = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", text.strip())
    if found is not None:
        least, most = int(found[1]), int(found[2] or found[1])
        if 1 <= least <= most <= MOST_REPLICAS:
            return least, most
    raise ValueError(f"--replicas {text}: give a number from 1 to {MOST_REPLICAS}, or two as 1-4")


def share_of_each(
    settings: Settings, cores: int | None, replicas: int, resources: Mapping[str, float]
) -> tuple[int, bool]:
    """Cores of each of `replicas`, and whether it has a GPU, of the `resources` that Ray has in all.

    `cores`: as many as wanted, None: two, or one where there are not so many. Raises ValueError.
    """
    cpus, gpus = int(resources.get("CPU", 0)), resources.get("GPU", 0.0)
    gpu = settings.device == "cuda" or (settings.device == "auto" and gpus > 0)
    if gpu and gpus < replicas:
        raise ValueError(
            f"{replicas} replicas on a GPU each, and Ray has {gpus:.0f} GPUs: ask for fewer, or serve with "
            "--device cpu"
        )
    each = cores or max(1, min(2, cpus // replicas))
    if each * replicas > cpus:
        raise ValueError(
            f"{replicas} replicas of {each} cores each need {each * replicas} cores, and there are {cpus}: "
            "ask for fewer by --replicas or --replica-cpus"
        )
    return each, gpu


def deployment_options(settings: Settings, count: tuple[int, int], cores: int, gpu: bool) -> dict[str, Any]:
    """Options of `serve.deployment`.

    A replica refuses what its own queue does not hold, with 429 and `Retry-After`: Serve hands it more than
    that. What waits in a proxy, as while no replica runs, is bounded by `max_connections`. A replica that is
    to end has as long as its longest request may take.
    """
    least, most = count
    scaling = {
        "min_replicas": least,
        "initial_replicas": least,
        "max_replicas": most,
        "target_ongoing_requests": REQUESTS_AIMED_AT,
    }
    longest = settings.request_timeout_seconds + settings.drain_seconds
    return {
        "name": "front",
        **({"autoscaling_config": scaling} if least < most else {"num_replicas": least}),
        "ray_actor_options": {"num_cpus": cores, "num_gpus": int(gpu)},
        "max_ongoing_requests": 2 * settings.max_queue + 16,
        "max_queued_requests": settings.max_connections,
        "max_constructor_retry_count": 1,
        "health_check_period_s": HEALTH_PERIOD_SECONDS,
        "health_check_timeout_s": 3 * HEALTH_PERIOD_SECONDS,
        "graceful_shutdown_wait_loop_s": ROUTERS_TOLD_SECONDS,
        "graceful_shutdown_timeout_s": longest + ROUTERS_TOLD_SECONDS + STOP_SECONDS,
        # Every request has a line in the replica's own log.
        "logging_config": {"enable_access_log": False, "log_level": "WARNING"},
    }


def free_port(host: str, port: int) -> int:
    """`port`, 0: any, which is free now: Serve's proxy takes a number, and binds it in a moment."""
    try:
        with bound_socket(host, port) as listener:
            found: int = listener.getsockname()[1]
            return found
    except OSError as error:
        raise ValueError(f"cannot listen on {host}:{port}: {error}; choose another --port") from error


def write_targets(path: Path, replicas: Sequence[Place]) -> None:
    """Have the file at `path` tell Prometheus of `replicas`, in one step: it never reads half of it.

    `instance` is a replica's name and where it listens: a trace's address begins so. Raises OSError.
    """
    groups = [
        {"targets": [one.address], "labels": {"instance": f"{one.name}@{one.address}", "node": one.node}}
        for one in replicas
    ]
    document = msgspec.json.format(msgspec.json.encode(groups), indent=2) + b"\n"
    if path.is_file() and path.read_bytes() == document:
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(document)
    beside.replace(path)


def serve_replicas(
    settings: Settings,
    count: tuple[int, int],
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
    # Serve tells of what the command tells itself.
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    try:
        if settings.engine_cpus is not None or settings.front_cpus is not None:
            raise ValueError(
                "ENGINE_CPUS and FRONT_CPUS are of one service: give every replica cores by --replica-cpus"
            )
        as_text = settings.log_format == "text"  # lines of JSON would get Ray's prefix
        # In order twice: Ray sets handlers of its own when it is connected to.
        with in_order(), connected(address, log_to_driver=as_text), in_order():
            file = targets or settings.cache_folder / TARGETS_FILE
            Command(settings, count, cores, address is None, file, engine_command).serve()
    except KeyboardInterrupt:
        return 0
    except (ray.exceptions.RayError, RayServeException, ConnectionError) as error:
        log.error("the cluster has ended: %s", (str(error).splitlines() or [type(error).__name__])[0])
        return EXIT_FAILED
    except (ClusterError, NotStarted, ValueError, OSError) as error:
        log.error(str(error))
        return EXIT_BAD_INPUT
    return 0


class Command:
    """One run: deploys, keeps the file of `targets` true, and ends the replicas unless another took over.

    `own`: the cluster ends with this command, which therefore stays where another one takes over.
    """

    def __init__(
        self,
        settings: Settings,
        count: tuple[int, int],
        cores: int | None,
        own: bool,
        targets: Path,
        engine_command: Sequence[str] | None,
    ) -> None:
        self._settings, self._count, self._cores, self._own = settings, count, cores, own
        self._targets, self._engine_command = targets, engine_command
        self._id = secrets.token_hex(8)
        self._registry = registry()

    def serve(self) -> None:
        """Until a signal, or until another command has taken over. Raises ValueError and NotStarted."""
        application = self._application()
        proxy = self._open_proxy()
        if warning := exposure(self._settings):
            log.warning(warning)
        taken_over = False
        try:
            self._deploy(application)
            print(f"launchbound: serving on {proxy}", flush=True)
            self._say()
            self._follow(application)
            taken_over = True
        except KeyboardInterrupt:
            log.info("ending the replicas once what they run has ended")
        finally:
            if ray.get(self._registry.leaves.remote(self._id)) or self._own:
                serve.delete(APPLICATION)
            if not taken_over:
                write_targets(self._targets, [])

    def _application(self) -> Application:
        settings, (_, most) = self._settings, self._count
        cores, gpu = share_of_each(settings, self._cores, most, ray.cluster_resources())
        deployment = serve.deployment(**deployment_options(settings, self._count, cores, gpu))
        return deployment(serve.ingress()(Replica)).bind(settings, cores, self._id, self._engine_command)

    def _open_proxy(self) -> str:
        """Start Serve with its proxy, unless it runs; returns the URL of its proxy."""
        host, port = self._settings.host, self._settings.port
        if self._own or port == 0:
            port = free_port(host, port)
        # Requests end by the replicas' own timeout.
        options = {"host": host, "port": port, "request_timeout_s": None}
        serve.start(proxy_location="HeadOnly", http_options=options, logging_config={"log_level": "WARNING"})
        client = _get_global_client()
        if client is None:
            raise RayServeException("Serve did not start")
        http = client.http_config
        return f"http://[{http.host}]:{http.port}" if ":" in http.host else f"http://{http.host}:{http.port}"

    def _deploy(self, application: Application) -> None:
        """Returns once the replicas serve, this command's unless another deploys. Raises NotStarted."""
        ray.get(self._registry.deploys.remote(self._id, self._own))
        serve.run_many([serve.RunTarget(application, APPLICATION)], wait_for_applications_running=False)
        ends = monotonic() + START_SECONDS
        while (seen := self._look()).deployed == self._id and not _runs():
            if why := seen.failed.get(self._id):
                raise NotStarted(why)
            if monotonic() > ends:
                raise NotStarted(f"not all replicas have started within {START_SECONDS / 60:.0f} minutes")
            sleep(LOOK_SECONDS)
        if seen.deployed == self._id:
            ray.get(self._registry.serves.remote(self._id))

    def _follow(self, application: Application) -> None:
        """Keep the targets true until another command has taken over.

        One that ends, or whose replicas do not start, leaves them to this one, which deploys its own again.
        """
        told = False
        while self._id in (seen := self._look()).commands:
            last = seen.commands[-1] == self._id
            if last and seen.deployed != self._id:
                log.warning("the command that replaced these replicas has ended: deploying them again")
                self._deploy(application)
                log.info("the replicas of this command serve again")
            elif not last and self._own and not told:
                log.info("another command replaces these replicas; this one stays, as Ray ends with it")
            told = not last
            sleep(LOOK_SECONDS)
        log.info("another command has taken over these replicas")

    def _look(self) -> View:
        """The registry now, without those that ended before they could say so; the file says the same."""
        seen: View = ray.get(self._registry.view.remote())
        alive = {actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)}
        if gone := [replica.actor for replica in seen.replicas if replica.actor not in alive]:
            ray.get(self._registry.remove.remote(gone))
            seen = ray.get(self._registry.view.remote())
        write_targets(self._targets, seen.replicas)
        return seen

    def _say(self) -> None:
        for replica in self._look().replicas:
            if replica.command == self._id:
                cores = ",".join(map(str, replica.cores))
                at = f"http://{replica.address}"
                log.info("replica %s at %s on core %s of %s", replica.name, at, cores, replica.node)
        log.info("targets for Prometheus (file_sd_configs): %s", self._targets)
        address = ray.get_runtime_context().gcs_address
        log.info("to replace these without a pause: launchbound serve --replicas N --address %s", address)


def _runs() -> bool:
    """Whether all replicas of the application run. Raises NotStarted where Serve has given them up."""
    found = serve.status().applications.get(APPLICATION)
    if found is None or found.status not in GIVEN_UP:
        return found is not None and found.status == ApplicationStatus.RUNNING
    messages = [one.message for one in found.deployments.values() if one.message] or [found.message]
    raise NotStarted(f"a replica did not start: {(messages[0].strip().splitlines() or [found.status])[-1]}")
