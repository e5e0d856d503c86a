"""The composition root of the front: `create_app` builds it, `serve` runs it in one process."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, closing
from functools import partial
from time import monotonic
from types import FrameType
from typing import cast

import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Request
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.front.access import DirectRoute, EntryMiddleware, exposure, require_key
from service.front.advice import AutoMode, ServedRequests
from service.front.engine_client import EngineClient
from service.front.errors import WrongWorkload
from service.front.limits import BoundedProtocol, LargeBodies, Slots, affordable
from service.front.logs import EngineLog, RequestLog, set_up
from service.front.machine import CoreClaims, build_commit, build_version
from service.front.metrics.recorder import Metrics
from service.front.metrics.series import new_registry
from service.front.routes import (
    forward,
    generate,
    health,
    modes,
    openai,
    pages,
    problems,
    runs,
    studies,
    traces,
)
from service.front.routes.answers import ACCESS_ERRORS, OF_ANY_REQUEST
from service.front.routes.state import AppState, state_of
from service.front.settings import Settings
from service.front.study_runner import ANATOMY_COMMAND, AnatomyProcess, StudyRunner, remove_abandoned_folders
from service.front.supervisor import ENGINE_COMMAND, Supervisor
from service.machine import engine_cpus, front_cpus, share_cpus
from service.workloads import FORWARD, GENERATE

log = logging.getLogger("launchbound")

EXIT_BAD_INPUT = 2

DIRECT_ROUTES: dict[str, tuple[DirectRoute, ...]] = {
    GENERATE.name: (
        (re.compile(r"/v1/modes/(?P<mode>[^/]+)/generate"), generate.generate),
        (re.compile(r"/v1/completions"), openai.completions),
    ),
    FORWARD.name: ((re.compile(r"/v1/modes/(?P<mode>[^/]+)/forward"), forward.forward),),
}
"""By workload: where the latency of a request is measured in tenths of a millisecond."""

OF_WORKLOADS = {GENERATE.name: (generate, openai), FORWARD.name: (forward,)}
"""The routes that serve one kind of model only."""

LAG_INTERVAL_SECONDS = 0.25
"""50 readings a second would disturb timed steps on a core that front and engine share."""

DESCRIPTION = """
One model, served through PyTorch's ladder of inference modes, side by side. Every answer reports where
its time went: queue, host dispatch, device kernels, waiting, and the rest.
"""


class Front(FastAPI):
    """The framework's app, entered through our one layer, so that a request can be answered without it."""

    entry: EntryMiddleware

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        await self.entry(scope, receive, send)

    async def framework(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().__call__(scope, receive, send)


def create_app(
    settings: Settings,
    engine_command: Sequence[str] | None = None,
    refused: Callable[[str], None] | None = None,
    anatomy_command: Sequence[str] | None = None,
    address: str | None = None,
) -> FastAPI:
    """The front as an ASGI app, whose lifespan starts and stops the engine.

    `refused` is called with the reason where the first engine refuses its settings. `address` is the
    service's URL, for the log.
    """
    commands = engine_command or ENGINE_COMMAND, anatomy_command or ANATOMY_COMMAND
    state = _assemble(settings, commands, refused, address)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        remove_abandoned_folders()
        lag = asyncio.create_task(report_lag(state.on_timer))
        state.supervisor.start()
        try:
            yield
        finally:
            lag.cancel()
            await state.client.drain(settings.drain_seconds)
            await asyncio.gather(state.studies.stop(), state.supervisor.stop())
            state.observe_all()

    app = Front(
        title="launchbound",
        version=build_version(),
        description=DESCRIPTION,
        lifespan=lifespan,
        redirect_slashes=False,
        openapi_url=None,
        responses=OF_ANY_REQUEST,
        generate_unique_id_function=lambda route: route.name.replace("-", "_"),
    )
    app.state.launchbound = state
    workload = settings.workload.name
    direct = DIRECT_ROUTES[workload]
    app.entry = EntryMiddleware(app.framework, settings, direct, problems.refuse, problems.broken)
    problems.install(app)
    # Without a key the document must not say that calls need one.
    guards = [Depends(require_key(settings))] if settings.api_key is not None else []
    v1 = APIRouter(prefix="/v1", dependencies=guards, responses=ACCESS_ERRORS)
    foreign = [routes for name, of_one in OF_WORKLOADS.items() if name != workload for routes in of_one]
    v1.include_router(studies.of_language_models, include_in_schema=settings.workload.tokens)
    for routes in (generate, openai, forward, modes, studies, traces, runs):
        if routes not in foreign:
            v1.include_router(routes.router)
    # After the others, as both kinds have a comparison.
    for routes in foreign:
        v1.include_router(routes.router, dependencies=[Depends(_refuse_workload)], include_in_schema=False)
    for router in (v1, health.router, pages.router):
        app.include_router(router)
    return app


async def _refuse_workload(request: Request) -> None:
    settings = state_of(request).settings
    here, other = ("language model", "module") if settings.workload.tokens else ("module", "language model")
    raise WrongWorkload(
        f"{request.scope['path'][:200]} is for a {other}, and this service serves the {here} "
        f"{settings.model}: its route is POST {settings.workload.route}; /docs lists all there are"
    )


def serve(settings: Settings) -> int:
    """Run the service until a signal; returns 0, or 2 for unusable settings.

    Raises OSError where the standard output does not take the address.
    """
    set_up(settings.log_format)
    if os.environ.get("WEB_CONCURRENCY", "1") != "1":
        return _bad_input("WEB_CONCURRENCY: this service has one front process, as its counters live in it")
    try:
        listener = listening(settings.host, settings.port, settings.unread_timeout_seconds)
    except ValueError as error:
        return _bad_input(str(error))
    cores = share_cpus(settings.cores)
    os.sched_setaffinity(0, cores)
    refusals: list[str] = []

    def refused(reason: str) -> None:
        refusals.append(reason)
        server.should_exit = True

    # Before the front is pinned: its children may use all cores.
    app = create_app(settings, refused=refused, address=url_of(listener))
    try:
        os.sched_setaffinity(0, front_cpus(settings.front_cpus, settings.engine_cpus))
        config = server_config(app, settings)
    except ValueError as error:
        listener.close()
        return _bad_input(str(error))
    server = Server(config, app.state.launchbound, listener)
    with closing(CoreClaims(engine_cpus(settings.engine_cpus, cores))) as claims:
        for warning in filter(None, (exposure(settings), claims.warning)):
            log.warning(warning)
        server.run(sockets=[listener])
    if server.unannounced is not None:
        raise server.unannounced
    return _bad_input(f"{refusals[0]}; see its message above") if refusals else 0


def _assemble(
    settings: Settings,
    commands: tuple[Sequence[str], Sequence[str]],
    refused: Callable[[str], None] | None,
    address: str | None,
) -> AppState:
    build = {"version": build_version(), "commit": build_commit(settings.commit)}
    instrumented, timeout = settings.instrumentation == "full", settings.request_timeout_seconds
    workload = settings.workload
    recorder = Metrics(
        new_registry(), settings.ladder, settings.batch_sizes, build, instrumented, timeout, workload
    )
    served = ServedRequests(workload)
    auto = AutoMode(settings.ladder, settings.batch_sizes, settings.advice, served)
    listeners = recorder, EngineLog(settings, build, address), served, auto
    client = EngineClient(settings.ladder, settings.max_queue, *listeners)
    supervisor = Supervisor(client, settings.engine_settings, commands[0], refused=refused)
    studies = StudyRunner(client, AnatomyProcess(settings.engine_settings, commands[1]), settings)
    bodies, request_log = LargeBodies(settings.max_queue), RequestLog(settings.log_requests)
    return AppState(settings, client, supervisor, studies, recorder, served, auto, bodies, request_log)


async def report_lag(record: Callable[[float], None]) -> None:
    """Call `record`, at every interval, with the seconds by which the event loop came late to it."""
    while True:
        due = monotonic() + LAG_INTERVAL_SECONDS
        await asyncio.sleep(LAG_INTERVAL_SECONDS)
        try:
            record(max(0.0, monotonic() - due))
        except Exception:
            log.exception("recording the lag of the event loop failed")


def _bad_input(message: str) -> int:
    log.error(message)
    return EXIT_BAD_INPUT


BACKLOG = 2048
"""Connections that wait to be accepted; uvicorn's own default."""

SEND_BYTES = 131_072
"""Of an unread answer in the kernel. By default it holds megabytes, and the server notices no slow reader."""


def bound_socket(host: str, port: int, unread_seconds: float = 0) -> socket.socket:
    """A listening socket; raises OSError where the port is taken.

    The kernel drops connections that take nothing for `unread_seconds`; 0: when it likes.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Connections inherit both.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(unread_seconds * 1000))
    try:
        listener.bind(address)
        # At once: two sockets may be bound to a port that is reused as long as neither listens.
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.set_inheritable(False)
    return listener


def listening(host: str, port: int, unread_seconds: float = 0) -> socket.socket:
    """As `bound_socket`, but raises ValueError with the remedy."""
    try:
        return bound_socket(host, port, unread_seconds)
    except OSError as error:
        raise ValueError(f"cannot listen on {host}:{port}: {error}; choose another --port") from error


def url_of(listener: socket.socket) -> str:
    return f"http://{authority(*listener.getsockname()[:2])}"


def authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


HEADERS = [("X-Content-Type-Options", "nosniff"), ("Cross-Origin-Resource-Policy", "same-origin")]
"""Of every answer: a browser takes none for something else, and shows none to a page of another origin."""

LAST_ANSWERS_SECONDS = 1


def server_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    """Raises ValueError where this process may not open enough files for a connection."""
    state: AppState = app.state.launchbound
    protocol = partial(
        BoundedProtocol,
        settings=settings,
        slots=Slots(affordable(settings.max_connections), state.metrics.connections),
        refused=lambda reason: state.metrics.rejected(reason, None),
    )
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=cast(type[HttpToolsProtocol], protocol),
        ws="none",
        lifespan="on",
        workers=1,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        headers=HEADERS,
        server_header=False,
        timeout_graceful_shutdown=LAST_ANSWERS_SECONDS,
    )


class Server(uvicorn.Server):
    """The first SIGTERM, SIGHUP or Ctrl-C drains, then stops; the second ends everything at once."""

    def __init__(self, config: uvicorn.Config, state: AppState, listener: socket.socket) -> None:
        super().__init__(config)
        self._state = state
        self._listener = listener
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: Future[None] | None = None
        self.unannounced: OSError | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and print the URL, from which a launcher learns the port it got for 0."""
        self._loop = asyncio.get_running_loop()
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # which is what `nohup` asks for
            signal.signal(signal.SIGHUP, self.handle_exit)
        await super().startup(sockets)
        # What lives as long as the server need not be looked through at every full collection.
        gc.collect()
        gc.freeze()
        try:
            print(f"launchbound: serving on {url_of(self._listener)}", flush=True)
        except OSError as error:
            # Raised here, it would be reported as a failed start of the application.
            self.unannounced, self.should_exit = error, True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._loop is None:
            self.should_exit = True
        elif self._state.client.draining:
            self._loop.call_soon_threadsafe(self._end_at_once)
        else:
            self._state.client.draining = True
            self._draining = asyncio.run_coroutine_threadsafe(self._drain(), self._loop)

    def _end_at_once(self) -> None:
        self._state.client.abandon()
        self._state.supervisor.kill()
        self._state.studies.process.kill()
        self.should_exit = self.force_exit = True

    async def _drain(self) -> None:
        await self._state.client.drain(self._state.settings.drain_seconds)
        self.should_exit = True
