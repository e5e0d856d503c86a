"""One replica: a front with its own engine on its own cores, as an ASGI app for Serve's proxy."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic

from starlette.types import Message, Receive, Scope, Send

from service.front.access import has_key
from service.front.app import create_app
from service.front.machine import CoreClaims
from service.front.routes.health import obstacle
from service.front.server import HEADERS
from service.front.settings import Settings
from service.protocol.placement import engine_cpus, front_cpus, pin, share_cpus
from service.replicas.body_ahead import with_body
from service.replicas.cores import ReplicaCores, claimed
from service.replicas.hang_up import ended_well
from service.replicas.health import Health
from service.replicas.last_warning import LastWarning
from service.replicas.listener import OwnListener, bound_at

log = logging.getLogger("launchbound.replica")

REPLICA_HEADER = b"x-launchbound-replica"
"""On every answer that came by Serve's proxy, with the replica's name: who measures must know."""

REQUEST_ID = b"x-request-id"
OF_EVERY_ANSWER = [(name.lower().encode(), value.encode()) for name, value in HEADERS]
"""The front's own server adds these."""

START_SECONDS = 3600.0
LOOK_SECONDS = 0.05


class StartFailed(RuntimeError):
    """The replica did not become ready; the message says why."""


Told = Callable[["ReplicaFront"], Awaitable[None]]


class ReplicaFront:
    """`settings` are those of the service, `cores_each` what it has of its node, whose address is `node`.

    Its lifespan claims cores, starts front and engine, and is complete when it is ready. `ready` and
    `ended` are awaited then and before the end, `failed` with the reason where it does not become ready.
    """

    def __init__(
        self,
        settings: Settings,
        cores_each: int,
        node: str,
        name: str,
        ready: Told,
        ended: Told,
        failed: Callable[[str], Awaitable[None]],
        engine_command: Sequence[str] | None = None,
    ) -> None:
        self.name = name
        self._cores_each = cores_each
        self._told = ready, ended, failed
        self._engine_command = engine_command
        host, reached_at = bound_at(settings.host, node)
        names = [*settings.allowed_hosts, settings.host, reached_at]
        self._settings = settings.model_copy(update={"host": host, "port": 0, "allowed_hosts": names})
        self._listener = OwnListener(host, reached_at, settings.unread_timeout_seconds)
        self._refusal: str | None = None
        self._claims: tuple[ReplicaCores, CoreClaims] | None = None
        self._warned = LastWarning("launchbound.engine")

    @property
    def address(self) -> str:
        """host:port at which this replica alone is reached."""
        return self._listener.address

    @property
    def cores(self) -> list[int]:
        """Those it has."""
        return [] if self._claims is None else self._claims[0].cores

    def check(self) -> None:
        """Raise Unhealthy where this replica is to be replaced."""
        self._health.check()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request that came by the proxy, or go through the lifespan."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        posted = scope["type"] == "http" and scope["method"] == "POST"
        # Who has not the key is refused at once, and has nothing held here.
        if posted and not self._health.ready and has_key(self._settings, scope):
            await self._until_ready_again()

        async def send_with_name(message: Message) -> None:
            if message["type"] == "http.response.start":
                # The proxy adds the id that it gave, or was given, to every answer, a malformed one too.
                kept = [header for header in message.get("headers", ()) if header[0] != REQUEST_ID]
                message["headers"] = [*kept, *OF_EVERY_ANSWER, (REPLICA_HEADER, self.name.encode())]
            await send(message)

        await ended_well(self._app, scope, with_body(scope, receive), send_with_name)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        ready, ended, failed = self._told
        await receive()
        try:
            await self._start()
        except Exception as error:
            log.exception("the replica did not start")
            await self._stop()
            await failed(str(error))
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await ready(self)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await ended(self)
        await self._stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def _start(self) -> None:
        began = monotonic()
        self._warned.attach()
        usable = share_cpus(self._settings.cores)
        held = await claimed(self._cores_each, usable)
        self._claims = held, CoreClaims(engine_cpus(None, held.cores))
        if self._claims[1].warning:
            log.warning(self._claims[1].warning)
        # The engine may use all of them until it is warm, as a front's own start has it.
        pin(held.cores)
        self._app = create_app(
            self._settings, self._engine_command, refused=self._refused, address=f"http://{self.address}"
        )
        pin(front_cpus(None, None, held.cores))
        self._health = Health(self._app.state.launchbound)
        await self._listener.start(self._app, self._settings)
        await self._until_ready(began + START_SECONDS)
        self._health = Health(self._app.state.launchbound, monotonic() - began)

    async def _until_ready(self, ends: float) -> None:
        """Raises StartFailed where an engine refuses its settings, a required mode fails, or after `ends`."""
        while (missing := obstacle(self._app.state.launchbound, detailed=True)) is not None:
            if self._refusal is not None:
                raise StartFailed(self._refusal)
            if (lost := self._health.lost) is not None or monotonic() > ends:
                raise StartFailed(lost or f"not ready after {START_SECONDS:.0f} s: {missing.message}")
            await asyncio.sleep(LOOK_SECONDS)

    async def _until_ready_again(self) -> None:
        """Hold a request while a new engine starts: refused at once, more of them would be sent here.

        Serve's proxy prefers the replica with the fewest unfinished requests.
        """
        ends = monotonic() + self._settings.request_timeout_seconds
        while not self._health.ready and self._health.lost is None and monotonic() < ends:
            if self._app.state.launchbound.client.draining:
                return
            await asyncio.sleep(LOOK_SECONDS)

    def _refused(self, reason: str) -> None:
        self._refusal = self._warned.message or reason

    async def _stop(self) -> None:
        await self._listener.stop()
        self._warned.detach()
        for claims in self._claims or ():
            claims.close()
