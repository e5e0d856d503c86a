"""`serve --replicas`: fronts as replicas of a Ray Serve application, each with its own engine and cores.

This imports Ray, which reads its environment then: set `ray_cluster.environment` before.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import msgspec
import ray
import uvicorn
from ray import serve
from ray.serve import Application
from ray.serve.context import _get_global_client
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.front.access import EVERYWHERE, exposure, has_key
from service.front.app import HEADERS, bound_socket, create_app, server_config
from service.front.logs import one_line, set_up
from service.front.machine import CoreClaims
from service.front.routes.health import missed, obstacle
from service.front.routes.state import AppState
from service.front.settings import Settings
from service.machine import engine_cpus, front_cpus, pin, share_cpus
from service.ray_cluster import NAMESPACE, is_loopback

log = logging.getLogger("launchbound.replicas")

APPLICATION = "launchbound"
MOST_REPLICAS = 1000
REQUESTS_AIMED_AT = 5
"""Unfinished requests per replica that Serve scales towards: four that wait and the one that runs."""

HEALTH_PERIOD_SECONDS, PATIENCE_SECONDS = 10.0, 60.0
"""Between two health checks, of which three in a row fail before Serve replaces a replica; and for how long
one may be without an engine, since its front starts another.
"""

ROUTERS_TOLD_SECONDS = 2.0
"""How long a replica that is to end goes on taking requests: until every proxy knows of it."""

STOP_SECONDS = 10.0
"""For an engine that is asked to end, then killed, and the processes around it."""

START_SECONDS = 3600.0
"""For all replicas: each loads its model and compiles, and may wait for cores."""

CORES_SECONDS = 15.0
"""Ray hands out the cores of a replica that has ended, which may be before its claim has gone."""

POLL_SECONDS, READY_POLL_SECONDS = 0.5, 0.05


class NotStarted(RuntimeError):
    """A replica did not become ready; the message says why."""


class Unhealthy(RuntimeError):
    """The replica is to be replaced; the message says why."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a replica is: `actor` is its name in Ray, `name` the short form that people read.

    `address` is host:port of its own listener.
    """

    actor: str
    name: str
    node: str
    address: str
    cores: list[int]


class Registry:
    """A named actor: who deployed last, and where the replicas are, which Serve does not show."""

    def __init__(self) -> None:
        self._deployed, self._replicas = "", list[Place]()

    def deploys(self, command: str) -> None:
        """`command` has replaced what runs."""
        self._deployed = command

    def add(self, replica: Place) -> None:
        """It is ready."""
        self._replicas.append(replica)

    def view(self) -> tuple[str, list[Place]]:
        """The command that deployed last, and all replicas that ever were."""
        return self._deployed, self._replicas


def registry() -> Any:  # noqa: ANN401 - a handle of Ray, whose methods are made at run time
    """The cluster's registry, made where there is none. It outlives whoever makes it."""
    options = {"name": "replicas", "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
    return ray.remote(num_cpus=0)(Registry).options(**options).remote()


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


def write_targets(path: Path, replicas: Sequence[Place]) -> None:
    """Replace the file at `path`, by which Prometheus finds `replicas`, in one step. Raises OSError.

    `instance` is a replica's name and where it listens: a trace's address begins so.
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


class Command:
    """One run: deploys, keeps the file of `targets` current, and ends the replicas unless another took over.

    Ray is connected to; `own`: it ends with this command. `count` are the least and the most replicas, with
    `cores` each, None: as many as usual. `engine_command` replaces the command line of the engines.
    """

    def __init__(
        self,
        settings: Settings,
        count: tuple[int, int],
        cores: int | None,
        own: bool,
        targets: Path | None,
        engine_command: Sequence[str] | None = None,
    ) -> None:
        # Serve says what the command says itself.
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        self._settings, self._own = settings, own
        self._targets = targets or settings.cache_folder / "replicas.targets.json"
        self._id, self._registry = secrets.token_hex(8), registry()
        each, gpu = share_of_each(settings, cores, count[1], ray.cluster_resources())
        deployment = serve.deployment(**deployment_options(settings, count, each, gpu))
        replica: Any = deployment(serve.ingress()(Replica))
        self._application: Application = replica.bind(settings, each, engine_command)

    def serve(self) -> None:
        """Until a signal, or until another command has taken over.

        Raises ValueError and NotStarted; RayError, RayServeException and ConnectionError where the cluster
        has ended.
        """
        proxy = self._open_proxy()
        if warning := exposure(self._settings):
            log.warning(warning)
        before, ends = _application(), True
        previous, _ = ray.get(self._registry.view.remote())
        try:
            self._deploy()
            print(f"launchbound: serving on {proxy}", flush=True)
            self._say_where()
            ends = not self._follow()
            log.info("the application has ended" if ends else "another command has taken over these replicas")
        except NotStarted:
            ends = before is None
            if not ends:  # what Serve has left of it goes on, and belongs to the command before
                ray.get(self._registry.deploys.remote(previous))
            raise
        except KeyboardInterrupt:
            # Nobody's, where it came before the registry was told.
            ends = self._look()[0] in ("", self._id) or _given_up(_application())
            log.info("ending the replicas once what they run has ended")
        finally:
            if ends:
                serve.delete(APPLICATION)
                write_targets(self._targets, [])

    def _open_proxy(self) -> str:
        """Start Serve with its proxy, unless it runs; returns the URL of its proxy."""
        host, port = self._settings.host, self._settings.port
        free = free_port(host, port) if self._own or port == 0 else port
        # Requests end by the replicas' own timeout.
        options = {"host": host, "port": free, "request_timeout_s": None}
        serve.start(proxy_location="HeadOnly", http_options=options, logging_config={"log_level": "WARNING"})
        client = _get_global_client()
        if client is None:
            raise RayServeException("Serve did not start")
        http = client.http_config
        return f"http://{_authority(http.host, http.port)}"

    def _deploy(self) -> None:
        """Returns once the replicas serve. Raises NotStarted, with the reason where Serve gives them up."""
        serve.run_many([serve.RunTarget(self._application, APPLICATION)], wait_for_applications_running=False)
        ray.get(self._registry.deploys.remote(self._id))
        ends = monotonic() + START_SECONDS
        while (found := _application()) is None or found.status != ApplicationStatus.RUNNING:
            if found and _given_up(found):
                raise NotStarted(_reason(found))
            if monotonic() > ends:
                raise NotStarted(f"not all replicas have started within {START_SECONDS / 60:.0f} minutes")
            sleep(POLL_SECONDS)

    def _follow(self) -> bool:
        """Keep the targets current. Returns True once another command has taken over, False once there is no
        application any more.
        """
        while (found := _application()) is not None:
            if self._look()[0] != self._id and found.status == ApplicationStatus.RUNNING:
                return True
            sleep(POLL_SECONDS)
        return False

    def _look(self) -> tuple[str, list[Place]]:
        """The command that deployed last, and the replicas that run now; the file says the same."""
        deployed, known = ray.get(self._registry.view.remote())
        alive = {actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)}
        replicas = sorted((one for one in known if one.actor in alive), key=lambda one: one.name)
        write_targets(self._targets, replicas)
        return deployed, replicas

    def _say_where(self) -> None:
        for replica in self._look()[1]:
            cores = ",".join(map(str, replica.cores))
            at = f"http://{replica.address}"
            log.info("replica %s at %s on core %s of %s", replica.name, at, cores, replica.node)
        log.info("targets for Prometheus (file_sd_configs): %s", self._targets)
        if not self._own:
            address = ray.get_runtime_context().gcs_address
            log.info("to replace these without a pause: launchbound serve --replicas N --address %s", address)


def free_port(host: str, port: int) -> int:
    """`port`, 0: any, which is free now: Serve's proxy takes a number, and binds it in a moment."""
    try:
        with bound_socket(host, port) as listener:
            found: int = listener.getsockname()[1]
            return found
    except OSError as error:
        raise ValueError(f"cannot listen on {host}:{port}: {error}; choose another --port") from error


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _application() -> ApplicationStatusOverview | None:
    return serve.status().applications.get(APPLICATION)


def _given_up(found: ApplicationStatusOverview | None) -> bool:
    failed = (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY)
    return found is not None and found.status in failed


def _reason(found: ApplicationStatusOverview) -> str:
    """The last line of the traceback by which a replica did not start."""
    messages = [one.message for one in found.deployments.values() if one.message] or [found.message]
    last = (messages[0].strip().splitlines() or [found.status])[-1]
    return last.removeprefix(f"{NotStarted.__module__}.{NotStarted.__name__}: ")


class Replica:
    """The deployment: what Serve makes, checks and has answer in a process of Ray's."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, settings: Settings, cores: int, engine_command: Sequence[str] | None
    ) -> None:
        set_up(settings.log_format)
        actor, node = ray.get_runtime_context().get_actor_name() or "", ray.util.get_node_ip_address()
        name = serve.get_replica_context().replica_id.unique_id
        self._front = ReplicaFront(settings, cores, node, name, engine_command)
        await self._front.start()
        address, own = self._front.address, self._front.cores
        place = Place(actor=actor, name=name, node=node, address=address, cores=own)
        await registry().add.remote(place)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return self._front

    async def check_health(self) -> None:
        """Raises Unhealthy, three times in a row where Serve is to replace this replica."""
        self._front.check()


class ReplicaFront:
    """A front of `settings` with its engine on `cores_each` cores of `node`, which no other replica has.

    It answers what comes by Serve's proxy, and at `address`, host:port of this replica alone.
    """

    def __init__(
        self,
        settings: Settings,
        cores_each: int,
        node: str,
        name: str,
        engine_command: Sequence[str] | None = None,
    ) -> None:
        host, reached_at = bound_at(settings.host, node)
        names = [*settings.allowed_hosts, settings.host, reached_at]
        self._settings = settings.model_copy(update={"host": host, "port": 0, "allowed_hosts": names})
        self._cores_each, self._engine_command = cores_each, engine_command
        self._headers = [(key.lower().encode(), value.encode()) for key, value in HEADERS]
        # On every answer that came by the proxy: who measures must know.
        self._headers.append((b"x-launchbound-replica", name.encode()))
        self._socket: socket.socket = bound_socket(host, 0, settings.unread_timeout_seconds)
        self.address = _authority(reached_at, self._socket.getsockname()[1])
        self.cores: list[int] = []
        self._claims: list[CoreClaims] = []
        self._ready_at = monotonic()

    async def start(self) -> None:
        """Returns once it is ready. Raises NotStarted where an engine refuses its settings, or modes fail."""
        self.cores, self._claims = await claimed(self._cores_each, share_cpus(self._settings.cores))
        claim = CoreClaims(engine_cpus(None, self.cores))
        self._claims.append(claim)
        if claim.warning:
            log.warning(claim.warning)
        refusals = list[str]()
        # The engine may use all of them until it is warm, as a front's own start has it.
        pin(self.cores)
        self._app = create_app(
            self._settings, self._engine_command, refused=refusals.append, address=f"http://{self.address}"
        )
        pin(front_cpus(None, None, self.cores))
        self._state: AppState = self._app.state.launchbound
        self._server = _Server(server_config(self._app, self._settings))
        self._serving = asyncio.create_task(self._server.serve([self._socket]), name="own-listener")
        try:
            with _warnings_of_the_engine() as warnings:
                while not self._server.started or obstacle(self._state, detailed=True) is not None:
                    if self._serving.done():
                        raise NotStarted("the front of the replica did not start; its log says why")
                    if why := [*refusals, *self._lost()]:
                        # Serve keeps a traceback, of which the command takes the last line.
                        raise NotStarted(one_line(warnings[-1] if refusals and warnings else why[0]))
                    await asyncio.sleep(READY_POLL_SECONDS)
        except BaseException:
            await self._stop()
            raise
        self._ready_at = monotonic()

    def _lost(self) -> list[str]:
        """Why waiting does not help: engines keep ending, or modes have failed. Empty where it may."""
        failed = [f"mode {status.mode} failed: {status.detail}" for status in missed(self._state)]
        ending = self._state.supervisor.unhealthy_reason
        return [ending] if ending else ["; ".join(failed)] if failed else []

    def check(self) -> None:
        """Raise Unhealthy where it has not been ready for PATIENCE_SECONDS."""
        found = obstacle(self._state, detailed=True)
        if found is None or self._state.client.draining:
            self._ready_at = monotonic()
        elif monotonic() - self._ready_at >= PATIENCE_SECONDS:
            raise Unhealthy(found.message)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request that came by the proxy, or go through the lifespan."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        # Who has not the key is refused at once, and has nothing held here.
        if scope["type"] == "http" and scope["method"] == "POST" and has_key(self._settings, scope):
            await self._until_ready_again()

        async def send_with_name(message: Message) -> None:
            if message["type"] == "http.response.start":
                # The proxy adds the id that it gave, or was given, to every answer, a malformed one too.
                kept = [header for header in message.get("headers", ()) if header[0] != b"x-request-id"]
                message["headers"] = [*kept, *self._headers]
            await send(message)

        await with_disconnect(self._app, scope, receive, send_with_name)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def _until_ready_again(self) -> None:
        """Hold a request while a new engine starts: refused at once, more of them would be sent here.

        Serve's proxy prefers the replica with the fewest unfinished requests.
        """
        ends = monotonic() + self._settings.request_timeout_seconds
        while obstacle(self._state, detailed=True) is not None and not self._lost():
            if self._state.client.draining or monotonic() > ends:
                return
            await asyncio.sleep(READY_POLL_SECONDS)

    async def _stop(self) -> None:
        """Take no more connections, end the engine, and give the cores back."""
        self._server.should_exit = True
        await asyncio.gather(self._serving, return_exceptions=True)
        self._socket.close()
        for claim in self._claims:
            claim.close()


class _Server(uvicorn.Server):
    """Signals are for the process that the replica runs in, which is Ray's."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextmanager
def _warnings_of_the_engine() -> Iterator[list[str]]:
    """What the engine warns of in the block: in its log it says why it refuses its settings."""
    found = list[str]()

    def keep(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            found.append(record.getMessage())
        return True

    engine_log = logging.getLogger("launchbound.engine")
    engine_log.addFilter(keep)
    try:
        yield found
    finally:
        engine_log.removeFilter(keep)


def bound_at(host: str, node: str) -> tuple[str, str]:
    """Where a replica listens, and by which name it is reached, of a service that is bound to `host`.

    `node` is the address of the replica's node: the address of one machine is not another's.
    """
    if host in EVERYWHERE:
        return host, node
    return (host, host) if is_loopback(host) else (node, node)


async def claimed(
    count: int, usable: Sequence[int], wait_seconds: float = CORES_SECONDS
) -> tuple[list[int], list[CoreClaims]]:
    """The first `count` of `usable` that no other replica of this node has, once there are so many.

    Ray counts cores and does not place. Raises NotStarted after `wait_seconds`.
    """
    ends = monotonic() + wait_seconds
    while True:
        found = dict[int, CoreClaims]()
        for core in usable:
            claim = CoreClaims([core], of="replica")
            if claim.held and len(found) < count:
                found[core] = claim
            else:
                claim.close()
        if len(found) == count:
            return list(found), list(found.values())
        for claim in found.values():
            claim.close()
        if monotonic() > ends:
            raise NotStarted(
                f"{count} cores that no other replica has: there are not so many among {list(usable)}; tell "
                "Ray the cores that this node has (--num-cpus), or ask for fewer by --replica-cpus"
            )
        await asyncio.sleep(0.2)


async def with_disconnect(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Run `app`; where this call is cancelled, the app receives `http.disconnect`, and is awaited.

    Serve cancels the call of a client that has gone. The app would be cut off before it has counted the
    request and told the engine; by the message it ends as with any server.
    """
    gone = asyncio.Event()

    async def receive_or_gone() -> Message:
        message, hung_up = asyncio.ensure_future(receive()), asyncio.ensure_future(gone.wait())
        try:
            await asyncio.wait({message, hung_up}, return_when=asyncio.FIRST_COMPLETED)
            return {"type": "http.disconnect"} if gone.is_set() else await message
        finally:
            message.cancel()
            hung_up.cancel()

    async def run() -> None:
        await app(scope, receive_or_gone, send)

    running = asyncio.ensure_future(run())
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        gone.set()
        await asyncio.wait({running})
        if not running.cancelled():
            running.exception()  # taken: there is nobody left to tell
        raise
