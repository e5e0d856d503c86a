"""One replica: a front with its own engine on its own cores, as an ASGI app for Serve's proxy."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.front.access import EVERYWHERE, has_key
from service.front.app import HEADERS, bound_socket, create_app, server_config
from service.front.machine import CoreClaims
from service.front.routes.health import missed, obstacle
from service.front.routes.state import AppState
from service.front.settings import Settings
from service.machine import engine_cpus, front_cpus, pin, share_cpus
from service.replicas.cluster import is_loopback

log = logging.getLogger("launchbound.replicas")

OF_EVERY_ANSWER = [(name.lower().encode(), value.encode()) for name, value in HEADERS]
"""The front's own server adds these."""

LEAST_PATIENCE_SECONDS = 60.0
CORES_SECONDS = 15.0
"""Ray hands out the cores of a replica that has ended, which may be before its claim has gone."""

LOOK_SECONDS = 0.05


class NotStarted(RuntimeError):
    """A replica did not become ready; the message says why."""


class Unhealthy(RuntimeError):
    """The replica is to be replaced; the message says why."""


class ReplicaFront:
    """A front of `settings` with its engine on `cores_each` cores of `node`, which no other replica has.

    It answers what comes by Serve's proxy, and at `address`, host:port of this replica alone. `start` returns
    once it is ready. At the end of its lifespan it awaits `ended`, and stops.
    """

    def __init__(
        self,
        settings: Settings,
        cores_each: int,
        node: str,
        name: str,
        ended: Callable[[], Awaitable[None]],
        engine_command: Sequence[str] | None = None,
    ) -> None:
        host, reached_at = bound_at(settings.host, node)
        names = [*settings.allowed_hosts, settings.host, reached_at]
        self._settings = settings.model_copy(update={"host": host, "port": 0, "allowed_hosts": names})
        self._cores_each, self._engine_command = cores_each, engine_command
        # On every answer that came by the proxy: who measures must know.
        self._headers = [*OF_EVERY_ANSWER, (b"x-launchbound-replica", name.encode())]
        self._ended = ended
        self._socket: socket.socket = bound_socket(host, 0, settings.unread_timeout_seconds)
        port = self._socket.getsockname()[1]
        self.address = f"[{reached_at}]:{port}" if ":" in reached_at else f"{reached_at}:{port}"
        self.cores: list[int] = []
        self._claims: list[CoreClaims] = []
        self._patience_seconds = LEAST_PATIENCE_SECONDS
        self._obstructed_since: float | None = None

    async def start(self) -> None:
        """Raises NotStarted where an engine refuses its settings, or the modes that are needed fail."""
        began = monotonic()
        refusals, warned = list[str](), _LastWarning()
        self.cores, self._claims = await claimed(self._cores_each, share_cpus(self._settings.cores))
        claim = CoreClaims(engine_cpus(None, self.cores))
        self._claims.append(claim)
        if claim.warning:
            log.warning(claim.warning)
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
            while not self._server.started or obstacle(self._state, detailed=True) is not None:
                if self._serving.done():
                    raise NotStarted("the front of the replica did not start; its log says why")
                if refusals or (lost := self._lost()) is not None:
                    raise NotStarted(warned.message or refusals[0] if refusals else lost)
                await asyncio.sleep(LOOK_SECONDS)
        except BaseException:
            await self._stop()
            raise
        finally:
            warned.close()
        self._patience_seconds = max(LEAST_PATIENCE_SECONDS, 2 * (monotonic() - began))

    def _lost(self) -> str | None:
        """Why waiting does not help: engines keep ending, or modes have failed. None where it may."""
        failed = (f"mode {status.mode} failed: {status.detail}" for status in missed(self._state))
        return self._state.supervisor.unhealthy_reason or "; ".join(failed) or None

    def check(self) -> None:
        """Raise Unhealthy where Serve is to replace this replica.

        A front starts a new engine by itself, within about the time of the first start: only what lasts twice
        as long, or a minute, is a fault of the replica. Engines that keep ending are one at once.
        """
        found = obstacle(self._state, detailed=True)
        if found is None or self._state.client.draining:
            self._obstructed_since = None
            return
        now = monotonic()
        self._obstructed_since = now if self._obstructed_since is None else self._obstructed_since
        if self._state.supervisor.unhealthy_reason is not None:
            raise Unhealthy(found.message)
        if (lasted := now - self._obstructed_since) >= self._patience_seconds:
            raise Unhealthy(f"not ready for {lasted:.0f} s: {found.message}")

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

        await told_of_hang_up(self._app, scope, receive, send_with_name)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._ended()
        await self._stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def _until_ready_again(self) -> None:
        """Hold a request while a new engine starts: refused at once, more of them would be sent here.

        Serve's proxy prefers the replica with the fewest unfinished requests.
        """
        ends = monotonic() + self._settings.request_timeout_seconds
        while (
            obstacle(self._state, detailed=True) is not None and self._lost() is None and monotonic() < ends
        ):
            if self._state.client.draining:
                return
            await asyncio.sleep(LOOK_SECONDS)

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


class _LastWarning(logging.Handler):
    """Keeps the newest warning of the engine, which says in its log why it refuses its settings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.message: str | None = None
        logging.getLogger("launchbound.engine").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.message = record.getMessage()

    def close(self) -> None:
        logging.getLogger("launchbound.engine").removeHandler(self)
        super().close()


def bound_at(host: str, node: str) -> tuple[str, str]:
    """Where a replica listens, and by which name it is reached, of a service that is bound to `host`.

    `node` is the address of the replica's node: a host that is one machine's address is not another's.
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


async def told_of_hang_up(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Run `app`; where this call is cancelled, it is told `http.disconnect`, and awaited.

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
            running.exception()  # looked at: there is nobody left to tell
        raise
