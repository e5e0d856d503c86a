"""The composition root of the front: `create_app` builds it, `serve` runs it in one process."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from time import monotonic

from fastapi import APIRouter, Depends, FastAPI

from service.front.access import DirectRoutesMiddleware, EntryMiddleware, Origins, exposure, require_key
from service.front.advice import AutoMode, ServedRequests
from service.front.anatomy_process import ANATOMY_COMMAND, AnatomyProcess
from service.front.engine_client import EngineClient
from service.front.limits import LargeBodies
from service.front.logs import EngineLog, RequestLog, set_up
from service.front.machine import CoreClaims, build_commit, build_version
from service.front.metrics.recorder import Metrics
from service.front.metrics.series import new_registry
from service.front.routes import generate, health, modes, openai, pages, problems, runs, studies, traces
from service.front.routes.answers import ACCESS_ERRORS, OF_ANY_REQUEST
from service.front.routes.state import AppState
from service.front.server import Server, bound_socket, server_config, url_of
from service.front.settings import Settings
from service.front.study_runner import StudyRunner, remove_abandoned_folders
from service.front.supervisor import ENGINE_COMMAND, Supervisor
from service.machine import engine_cpus, front_cpus, share_cpus

log = logging.getLogger("launchbound")

EXIT_BAD_INPUT = 2

DIRECT_ROUTES = (
    (re.compile(r"/v1/modes/(?P<mode>[^/]+)/generate"), generate.generate),
    (re.compile(r"/v1/completions"), openai.completions),
)
"""Where the latency of a request is measured in tenths of a millisecond."""

LAG_INTERVAL_SECONDS = 0.25
"""Work that holds the loop longer is always seen, and shorter work as often as its share of the time.

Readings go on during timed steps, where each takes a core that front and engine share from the engine: 50 a
second alone would mark steps of more than 1 ms as disturbed. Their pace is the same with requests
and without, so that all weigh the same; an idle front wakes 10 times a second anyway, for the server.
"""

DESCRIPTION = """
One transformer, served through PyTorch's ladder of inference modes, side by side. Every answer reports where
its time went: queue, host dispatch, device kernels, waiting, and the rest.
"""


def create_app(
    settings: Settings,
    engine_command: Sequence[str] | None = None,
    refused: Callable[[str], None] | None = None,
    anatomy_command: Sequence[str] | None = None,
    address: str | None = None,
) -> FastAPI:
    """The front as an ASGI app. Its lifespan starts and stops the engine.

    `engine_command` and `anatomy_command` replace the command lines of these processes; their settings are
    appended as JSON. `refused` is called with the reason where the first engine refuses its settings.
    `address` is where it will be reached, for the log.
    """
    commands = engine_command or ENGINE_COMMAND, anatomy_command or ANATOMY_COMMAND
    state = _assemble(settings, commands, refused, address)
    lag = LoopLag(state.look)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        remove_abandoned_folders()
        lag.start()
        state.supervisor.start()
        try:
            yield
        finally:
            lag.stop()
            await state.client.drain(settings.drain_seconds)
            await asyncio.gather(state.studies.stop(), state.supervisor.stop())
            state.observe_all()

    app = FastAPI(
        title="launchbound",
        version=build_version(),
        description=DESCRIPTION,
        lifespan=lifespan,
        redirect_slashes=False,
        openapi_url=None,
        responses=OF_ANY_REQUEST,
    )
    app.state.launchbound = state
    app.add_middleware(
        DirectRoutesMiddleware, settings=settings, routes=DIRECT_ROUTES, refuse=problems.refuse
    )
    origins = Origins(settings.host, settings.allowed_hosts)
    app.add_middleware(EntryMiddleware, origins=origins, refuse=problems.refuse)
    problems.install(app)
    # Without a key the document must not say that calls need one.
    guards = [Depends(require_key(settings))] if settings.api_key is not None else []
    v1 = APIRouter(prefix="/v1", dependencies=guards, responses=ACCESS_ERRORS)
    for routes in (generate, openai, modes, studies, traces, runs):
        v1.include_router(routes.router)
    for router in (v1, health.router, pages.router):
        app.include_router(router)
    return app


def serve(settings: Settings) -> int:
    """Run the service until a signal stops it. Returns the exit code: 0, or 2 for unusable settings.

    Raises OSError where the standard output does not take the address.
    """
    set_up(settings.log_format)
    if os.environ.get("WEB_CONCURRENCY", "1") != "1":
        return _bad_input("WEB_CONCURRENCY: this service has one front process, as its counters live in it")
    try:
        listener = bound_socket(settings.host, settings.port, settings.unread_timeout_seconds)
    except OSError as error:
        return _bad_input(f"cannot listen on {settings.host}:{settings.port}: {error}; choose another --port")
    cores = share_cpus(settings.cores)
    os.sched_setaffinity(0, cores)
    refusals: list[str] = []

    def refused(reason: str) -> None:
        refusals.append(reason)
        server.should_exit = True

    # Before the front is pinned: its children may use all cores.
    app = create_app(settings, refused=refused, address=url_of(listener))
    os.sched_setaffinity(0, front_cpus(settings.front_cpus, settings.engine_cpus))
    try:
        config = server_config(app, settings)
    except ValueError as error:
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
    instrumented = settings.instrumentation == "full"
    recorder = Metrics(
        new_registry(),
        settings.modes,
        settings.batch_sizes,
        build,
        instrumented,
        settings.request_timeout_seconds,
    )
    served = ServedRequests()
    auto = AutoMode(settings.modes, settings.batch_sizes, settings.advice, served)
    listeners = recorder, EngineLog(settings, build, address), served, auto
    client = EngineClient(settings.modes, settings.max_queue, settings.hang_seconds, *listeners)
    supervisor = Supervisor(client, settings.engine_settings, commands[0], refused=refused)
    studies = StudyRunner(client, AnatomyProcess(settings.engine_settings, commands[1]), settings)
    bodies, request_log = LargeBodies(settings.max_queue), RequestLog(settings.log_requests)
    return AppState(settings, client, supervisor, studies, recorder, served, auto, bodies, request_log)


class LoopLag:
    """Reports to `record`, at every interval, by how many seconds the loop came late to it."""

    def __init__(self, record: Callable[[float], None]) -> None:
        self._record = record
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin; there is a running loop."""
        self._due = monotonic() + LAG_INTERVAL_SECONDS
        self._timer = asyncio.get_running_loop().call_later(LAG_INTERVAL_SECONDS, self._read)

    def stop(self) -> None:
        """End."""
        if self._timer is not None:
            self._timer.cancel()

    def _read(self) -> None:
        self._record(max(0.0, monotonic() - self._due))
        self.start()


def _bad_input(message: str) -> int:
    log.error(message)
    return EXIT_BAD_INPUT
