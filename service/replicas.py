"""`serve --replicas`: fronts as replicas of a Ray Serve application, each with its own engine and cores.

This imports Ray, which reads its environment then: set `ray_cluster.environment` before.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import secrets
import socket
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

import ray
import uvicorn
from ray import serve
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put
from ray.serve.context import _get_global_client
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.front.access import EVERYWHERE, exposure, has_key
from service.front.app import HEADERS, authority, bound_socket, create_app, listening, server_config
from service.front.logs import one_line, set_up
from service.front.machine import CoreClaims
from service.front.routes.health import missed, obstacle
from service.front.routes.state import AppState
from service.front.settings import Settings
from service.machine import engine_cpus, front_cpus, pin, share_cpus
from service.ray_cluster import is_loopback

log = logging.getLogger("launchbound.replicas")

APPLICATION = "launchbound"
MOST_REPLICAS = 1000
REQUESTS_AIMED_AT = 5
"""Unfinished requests per replica that Serve scales towards: four that wait and the one that runs."""

HEALTH_PERIOD_SECONDS = 25.0
"""Serve replaces a replica after three failed checks in a row: till then its front starts another engine."""

STILL_ROUTED_SECONDS, STOP_SECONDS = 2.0, 10.0
"""How long a replica that is to end takes requests, until every proxy knows; and its engine's time to end."""

CORES_SECONDS = 15.0
"""Ray hands out the cores of a replica that has ended, which may be before its claim has gone."""

OWNER = "launchbound-replicas"
"""Where Ray keeps which command has deployed last."""

POLL_SECONDS, READY_POLL_SECONDS = 0.5, 0.05


class NotStarted(RuntimeError): ...


def replica_count(text: str) -> tuple[int, int]:
    """The least and the most replicas of '4', or '1-4'. Raises ValueError for anything else."""
    if found := re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", text.strip()):
        least, most = int(found[1]), int(found[2] or found[1])
        if 1 <= least <= most <= MOST_REPLICAS:
            return least, most
    raise ValueError(f"--replicas {text}: give a number from 1 to {MOST_REPLICAS}, or two as 1-4")


def share_of_each(
    settings: Settings, cores: int | None, replicas: int, resources: Mapping[str, float]
) -> tuple[int, bool]:
    """Cores of each of `replicas` (None: two, or one), and whether it has a GPU, of Ray's `resources`."""
    cpus, gpus = int(resources.get("CPU", 0)), resources.get("GPU", 0.0)
    if settings.device.startswith("cuda:"):
        raise ValueError(f"device '{settings.device}': Ray chooses each replica's GPU; use --device cuda")
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

    Serve hands a replica more than its queue holds, so that it answers 429 with `Retry-After`. What waits in
    a proxy is bounded by `max_connections`. An ending replica has the time of its longest request.
    """
    least, most = count
    scaling = {"min_replicas": least, "initial_replicas": least, "max_replicas": most}
    scaled = {"autoscaling_config": {**scaling, "target_ongoing_requests": REQUESTS_AIMED_AT}}
    longest = settings.request_timeout_seconds + settings.drain_seconds
    return {
        "name": "front",
        **(scaled if least < most else {"num_replicas": least}),
        "ray_actor_options": {"num_cpus": cores, "num_gpus": int(gpu)},
        "max_ongoing_requests": 2 * settings.max_queue + 16,
        "max_queued_requests": settings.max_connections,
        "max_constructor_retry_count": 1,
        "health_check_period_s": HEALTH_PERIOD_SECONDS,
        "graceful_shutdown_wait_loop_s": STILL_ROUTED_SECONDS,
        "graceful_shutdown_timeout_s": longest + STILL_ROUTED_SECONDS + STOP_SECONDS,
        # Every request has a line in the replica's own log.
        "logging_config": {"enable_access_log": False, "log_level": "WARNING"},
    }


def serve_replicas(
    settings: Settings,
    count: tuple[int, int],
    cores: int | None,
    own: bool,
    engine_command: Sequence[str] | None = None,
) -> None:
    """Serve until a signal, or until another command has deployed, which then has the replicas.

    `own`: the connected Ray ends with this command. `count`: the least and the most replicas. Raises
    ValueError and NotStarted; RayError, RayServeException and ConnectionError where the cluster has ended.
    """
    logging.getLogger("ray.serve").setLevel(logging.ERROR)  # it says what is said here
    each, gpu = share_of_each(settings, cores, count[1], ray.cluster_resources())
    deployment: Any = serve.deployment(**deployment_options(settings, count, each, gpu))
    application = deployment(serve.ingress()(Replica)).bind(settings, each, engine_command)
    url = _open_proxy(settings, own)
    if warning := exposure(settings):
        log.warning(warning)
    owner, others = secrets.token_bytes(8), _application() is not None
    try:
        _internal_kv_put(OWNER, owner)
        serve.run_many([serve.RunTarget(application, APPLICATION)], wait_for_applications_running=False)
        _await_running()
        print(f"launchbound: serving on {url}", flush=True)
        if not own:
            address = ray.get_runtime_context().gcs_address
            log.info("to replace these without a pause: launchbound serve --replicas N --address %s", address)
        while _application() is not None and _internal_kv_get(OWNER) == owner:
            sleep(POLL_SECONDS)
        log.info("the application has ended, or another command has taken over")
    except NotStarted:
        if others:
            owner = b""  # what Serve has left of the replicas of an earlier command goes on
        raise
    finally:
        if _internal_kv_get(OWNER) == owner:
            log.info("ending the replicas once what they run has ended")
            serve.delete(APPLICATION)


def _open_proxy(settings: Settings, own: bool) -> str:
    """Start Serve with its proxy, unless it runs; returns the URL of its proxy."""
    host, port = settings.host, settings.port
    free = free_port(host, port) if own or port == 0 else port
    # Requests end by the replicas' own timeout.
    options = {"host": host, "port": free, "request_timeout_s": None}
    serve.start(proxy_location="HeadOnly", http_options=options, logging_config={"log_level": "WARNING"})
    if (client := _get_global_client()) is None:
        raise RayServeException("Serve did not start")
    return f"http://{authority(client.http_config.host, client.http_config.port)}"


def free_port(host: str, port: int) -> int:
    """`port`, 0: any, which is free now: Serve's proxy takes a number, and binds it in a moment."""
    with listening(host, port) as listener:
        return int(listener.getsockname()[1])


def _application() -> ApplicationStatusOverview | None:
    return serve.status().applications.get(APPLICATION)


def _await_running() -> None:
    """Returns once the replicas serve. Raises NotStarted, with the reason where Serve gives them up."""
    while (found := _application()) is None or found.status != ApplicationStatus.RUNNING:
        if found and found.status in (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY):
            messages = [one.message for one in found.deployments.values() if one.message] or [found.message]
            # The last line of a traceback.
            last = (messages[0].strip().splitlines() or [found.status])[-1]
            raise NotStarted(last.removeprefix(f"{NotStarted.__module__}.{NotStarted.__name__}: "))
        sleep(POLL_SECONDS)


class Replica:
    """The deployment: a front of `settings` with its engine, on cores that no other replica of its node has.

    It answers what comes by Serve's proxy, and at `address`, host:port of this replica alone.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, settings: Settings, cores_each: int, engine_command: Sequence[str] | None = None
    ) -> None:
        """Returns once it is ready. Raises NotStarted where an engine refuses its settings, or modes fail."""
        set_up(settings.log_format)
        node, name = where_and_who()
        host, reached_at = bound_at(settings.host, node)
        names = [*settings.allowed_hosts, settings.host, reached_at]
        self._settings = settings.model_copy(update={"host": host, "port": 0, "allowed_hosts": names})
        # On every answer that came by the proxy: who measures must know.
        headers = [*HEADERS, ("X-Launchbound-Replica", name)]
        self._headers = [(key.lower().encode(), value.encode()) for key, value in headers]
        self._claims = await claimed(cores_each, share_cpus(settings.cores))
        self.cores = list(self._claims)
        self._engine_claim = CoreClaims(engine_cpus(None, self.cores))
        if self._engine_claim.warning:
            log.warning(self._engine_claim.warning)
        self._socket = own_listener(host, settings.port, settings.unread_timeout_seconds)
        self.address = authority(reached_at, self._socket.getsockname()[1])
        await self._start(engine_command)
        own = ",".join(map(str, self.cores))
        log.info("replica %s at http://%s on core %s of %s", name, self.address, own, node)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:  # uvicorn takes no method for one
            await self.answer(scope, receive, send)

        return app

    async def check_health(self) -> None:
        if (found := obstacle(self._state, detailed=True)) is not None:
            raise RuntimeError(found.message)

    async def _start(self, engine_command: Sequence[str] | None) -> None:
        refusals, words = list[str](), deque[str](maxlen=1)  # an engine logs why it refuses its settings

        def keep(record: logging.LogRecord) -> bool:
            if record.levelno >= logging.WARNING:
                words.append(record.getMessage())
            return True

        logging.getLogger("launchbound.engine").addFilter(keep)
        # The engine may use all of them until it is warm, as a front's own start has it.
        pin(self.cores)
        self._app = create_app(
            self._settings, engine_command, refused=refusals.append, address=f"http://{self.address}"
        )
        pin(front_cpus(None, None, self.cores))
        self._state: AppState = self._app.state.launchbound
        self._server = _Server(server_config(self._app, self._settings))
        self._serving = asyncio.create_task(self._server.serve([self._socket]), name="own-listener")
        try:
            while not self._server.started or obstacle(self._state, detailed=True) is not None:
                if self._serving.done():
                    raise NotStarted("the front of the replica did not start; its log says why")
                if refusals:
                    raise NotStarted(one_line([*refusals, *words][-1]))
                if self._beyond_waiting() and (found := obstacle(self._state, detailed=True)):
                    raise NotStarted(one_line(found.message))
                await asyncio.sleep(READY_POLL_SECONDS)
        except BaseException:
            await self._stop()
            raise

    def _beyond_waiting(self) -> bool:
        """Whether waiting does not help: engines keep ending, or modes have failed."""
        return self._state.supervisor.unhealthy_reason is not None or bool(missed(self._state))

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
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
        """Hold a request while a new engine starts: Serve's proxy prefers the replica with the fewest."""
        ends = monotonic() + self._settings.request_timeout_seconds
        while obstacle(self._state, detailed=True) is not None and not self._beyond_waiting():
            if self._state.client.draining or monotonic() > ends:
                return
            await asyncio.sleep(READY_POLL_SECONDS)

    async def _stop(self) -> None:
        self._server.should_exit = True
        await asyncio.gather(self._serving, return_exceptions=True)
        self._socket.close()
        for claim in (self._engine_claim, *self._claims.values()):
            claim.close()


def where_and_who() -> tuple[str, str]:
    return ray.util.get_node_ip_address(), serve.get_replica_context().replica_id.unique_id


class _Server(uvicorn.Server):
    """Signals are for the process that the replica runs in, which is Ray's."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bound_at(host: str, node: str) -> tuple[str, str]:
    """Where a replica on `node` listens, and by which name it is reached, of a service bound to `host`."""
    if host in EVERYWHERE:
        return host, node
    return (host, host) if is_loopback(host) else (node, node)


def own_listener(host: str, port: int, unread_seconds: float) -> socket.socket:
    """A socket at the first free port above the proxy's `port`, where Prometheus finds it; 0: at any."""
    for number in range(port + 1, min(port + MOST_REPLICAS, 65_536)) if port else ():
        try:
            return bound_socket(host, number, unread_seconds)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    return bound_socket(host, 0, unread_seconds)


async def claimed(
    count: int, usable: Sequence[int], wait_seconds: float = CORES_SECONDS
) -> dict[int, CoreClaims]:
    """The first `count` of `usable` that no other replica of this node has. Raises NotStarted."""
    ends = monotonic() + wait_seconds
    while True:
        claims = {core: CoreClaims([core], of="replica") for core in usable}
        free = [core for core, claim in claims.items() if claim.held][:count]
        kept = free if len(free) == count else []
        for core in claims.keys() - kept:
            claims.pop(core).close()
        if kept:
            return claims
        if monotonic() > ends:
            raise NotStarted(
                f"{count} cores that no other replica has: there are not so many among {list(usable)}; tell "
                "Ray the cores that this node has (--num-cpus), or ask for fewer by --replica-cpus"
            )
        await asyncio.sleep(0.2)


async def with_disconnect(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Run `app`. Cancelled by Serve, as the client has gone, it receives `http.disconnect` and is awaited."""
    gone = asyncio.get_running_loop().create_future()

    async def receive_or_gone() -> Message:
        message = asyncio.ensure_future(receive())
        try:
            await asyncio.wait({message, gone}, return_when=asyncio.FIRST_COMPLETED)
            return {"type": "http.disconnect"} if gone.done() else await message
        finally:
            message.cancel()

    running = asyncio.ensure_future(app(scope, receive_or_gone, send))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        gone.set_result(None)
        await asyncio.gather(running, return_exceptions=True)
        raise
