"""Runs the front with the fake engine in this process; raw connections to it, and the lines of its log."""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import httpx
import uvicorn

from service.front.app import LAST_ANSWERS_SECONDS, bound_socket, create_app, server_config, url_of
from service.front.child_process import STOP_SECONDS, TERMINATE_SECONDS
from service.front.logs import FORMATTERS
from service.front.routes.state import AppState
from service.front.settings import Settings

FAKE_ENGINE = Path(__file__).parent / "fake_engine.py"
FAKE_ANATOMY = Path(__file__).parent / "fake_anatomy.py"
PATIENCE_SECONDS = 180.0
SECONDS_TO_END: float = (
    Settings.model_fields["drain_seconds"].default + LAST_ANSWERS_SECONDS + STOP_SECONDS + TERMINATE_SECONDS
)
"""A service takes no longer from SIGTERM to its end, with the default settings."""
Value = TypeVar("Value")
BODY: dict[str, object] = {"prompts": ["def mean(values):"], "max_new_tokens": 4}
GENERATE = "/v1/modes/eager/generate"
JSON = {"Content-Type": "application/json"}
NO_RESULTS = Path(__file__).with_name("no-results")
"""There is no such folder. In the default one are the sweeps of whoever runs the tests."""

FRESH = {"Cache-Control": "no-cache"}
"""With it `GET /metrics` is of this moment, not of the last second."""


def until(condition: Callable[[], Value], what: str, seconds: float = PATIENCE_SECONDS) -> Value:
    """Poll `condition` until it holds and return its value; fail, naming `what`, after `seconds`.

    More seldom the longer it takes: asking competes for the core with what is awaited.
    """
    began = time.monotonic()
    while not (value := condition()):
        waited = time.monotonic() - began
        assert waited < seconds, f"waited too long for {what}"
        time.sleep(min(0.05, max(0.005, 0.1 * waited)))
    return value


class Front:
    """A running front, and a client of it."""

    def __init__(self, http: httpx.Client, state: AppState, url: str, server: uvicorn.ServerState) -> None:
        self.http, self.state, self.url, self.server = http, state, url, server
        self._before: dict[str, float] = {}

    def generate(
        self, mode: str = "eager", headers: dict[str, str] | None = None, **body: object
    ) -> httpx.Response:
        """POST a generation; fields not given are those of BODY."""
        return self.http.post(f"/v1/modes/{mode}/generate", json={**BODY, **body}, headers=headers)

    def command(self, command: str, **body: object) -> httpx.Response:
        """Have the fake engine do something."""
        return self.generate(**{"prompts": [command], **body})

    def await_ready(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Until all modes serve; fails after `seconds`."""
        until(lambda: self.http.get("/health/ready").status_code == 200, "all modes ready", seconds)

    def series(self) -> dict[str, float]:
        """The exposition: 'name{labels}' → value."""
        lines = self.http.get("/metrics").text.splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name.removeprefix("launchbound_"): float(value) for name, value in pairs}

    @contextmanager
    def going_by(self, **settings: object) -> Iterator[None]:
        """Have the routes go by other settings meanwhile."""
        usual = self.state.settings
        object.__setattr__(self.state, "settings", usual.model_copy(update=settings))
        try:
            yield
        finally:
            object.__setattr__(self.state, "settings", usual)

    def moved(self) -> dict[str, float]:
        """By how much each series has moved since `renew`."""
        return {name: value - self._before.get(name, 0.0) for name, value in self.series().items()}

    def renew(self) -> None:
        """Undo what was done to admission and modes, forget failures and sweeps, await an idle engine."""
        client, supervisor = self.state.client, self.state.supervisor
        client.max_queue, client._drain_ends, client.draining = self.state.settings.max_queue, None, False
        supervisor.failures = 0
        self.state.studies.sweeps._requests, self.state.studies.sweeps._last = 0, None
        until(lambda: client.engine, "the engine")
        for mode in client.modes.keys() - set(client.ready_modes()):
            self.command(f"!state {mode} ready", mode=client.ready_modes()[0])
        self.await_ready()
        until(lambda: not client.in_progress(), "the end of what ran")
        self._before = self.series()


Event = tuple[str, dict[str, Any]]


def events(lines: Iterable[str]) -> Iterator[Event]:
    """Server-sent events from their lines."""
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def refused(answer: httpx.Response, status: int) -> dict[str, str]:
    """The error of `answer`, checked to be in the one shape."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.json().keys() == {"error"}
    error: dict[str, str] = answer.json()["error"]
    assert error.keys() == {"type", "message", "param"}
    assert error["type"]
    assert error["message"]
    return error


def fake_engine_command(**options: object) -> list[str]:
    """The command line of a fake engine; its settings are appended by the supervisor."""
    return [sys.executable, str(FAKE_ENGINE), json.dumps(options)]


@contextmanager
def running(
    settings: dict[str, Any] | None = None,
    command: list[str] | None = None,
    anatomy: Path | None = None,
    **options: object,
) -> Iterator[Front]:
    """A front on a free port with a fake engine of these options, or `command`; both are gone at the end.

    `anatomy`: the folder in which a fake anatomy process finds its commands; else it is the real one.
    """
    given = {"port": 0, "batch_sizes": [1, 4], "drain_seconds": 1.0, "results_folder": NO_RESULTS}
    given |= settings or {}
    fake_anatomy = [sys.executable, str(FAKE_ANATOMY), str(anatomy)] if anatomy else None
    engine = command or fake_engine_command(**options)
    chosen = Settings(**given)
    app = create_app(chosen, engine, anatomy_command=fake_anatomy)
    config = server_config(app, chosen)
    config.timeout_graceful_shutdown = 2
    server = uvicorn.Server(config)
    listener = bound_socket(chosen.host, chosen.port, chosen.unread_timeout_seconds)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        until(lambda: server.started or not thread.is_alive(), "the server")
        url = url_of(listener)
        with httpx.Client(base_url=url, headers=FRESH, timeout=PATIENCE_SECONDS, trust_env=False) as http:
            yield Front(http, app.state.launchbound, url, server.server_state)
    finally:
        server.should_exit = True
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive(), "the server did not end"


HEAD = b"POST /v1/modes/eager/generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
"""The head of a request, but for its length and its end."""


class RawAnswer(NamedTuple):
    """One answer, its header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def error(self) -> dict[str, Any]:
        """The error of a body in the one shape."""
        found: dict[str, Any] = json.loads(self.body)["error"]
        return found


@contextmanager
def connected(front: Front, receive_bytes: int | None = None) -> Iterator[socket.socket]:
    """A connection that gives up after PATIENCE_SECONDS, and takes `receive_bytes` before it is read."""
    parts = urlsplit(front.url)
    assert parts.port is not None
    with socket.socket() as opened:
        if receive_bytes is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        opened.settimeout(PATIENCE_SECONDS)
        opened.connect(("127.0.0.1", parts.port))
        yield opened


def send(connection: socket.socket, data: bytes) -> None:
    """Send what the other side takes: it may have answered and closed before the end."""
    try:
        connection.sendall(data)
    except ConnectionError:
        return


def until_closed(connection: socket.socket) -> bytes:
    """Everything that arrives before the other side closes."""
    received = b""
    try:
        while data := connection.recv(65_536):
            received += data
    except ConnectionResetError:
        return received  # closed with bytes of ours unread
    return received


def parsed(received: bytes) -> RawAnswer:
    """The one answer in `received`."""
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return RawAnswer(int(first.split(" ")[1]), headers, body)


def exchange(front: Front, data: bytes) -> RawAnswer:
    """Send `data` and read until the front closes the connection."""
    with connected(front) as connection:
        send(connection, data)
        return parsed(until_closed(connection))


class Lines(logging.Handler):
    """Keeps what would be written, line by line."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.setFormatter(FORMATTERS[form]())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one record."""
        self.lines += self.format(record).split("\n")

    def objects(self, component: str) -> list[dict[str, Any]]:
        """Lines of JSON, of one component."""
        found = map(json.loads, list(self.lines))
        return [line for line in found if line["component"] == component]


@contextmanager
def logged(form: str = "json") -> Iterator[Lines]:
    """What our loggers write within the block; nothing of it reaches standard error."""
    ours = logging.getLogger("launchbound")
    kept = Lines(form)
    before = ours.level, ours.propagate
    ours.addHandler(kept)
    ours.setLevel(logging.INFO)
    ours.propagate = False
    try:
        yield kept
    finally:
        ours.removeHandler(kept)
        ours.setLevel(before[0])
        ours.propagate = before[1]
