"""For plain locust: `locust -f loadtests/locustfile.py --host http://127.0.0.1:8000`, from the root.

Every request goes to a random mode and batch size of those chosen; locust's page shows a row for each pair.
To compare modes, run `launchbound sweep`: it measures in rounds and keeps every request.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import random
import re
import sys
import uuid
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from locust import FastHttpUser, events, task
from locust.argument_parser import LocustArgumentParser
from locust.contrib.fasthttp import FastResponse
from locust.env import Environment
from locust.exception import StopTest
from locust.runners import LocalRunner

from loadtests.plan.cells import read_prompts
from loadtests.run.exporter import PORT, Exporter, Outcome
from service.modes import MODES, default_modes

logger = logging.getLogger("launchbound")


@dataclass(frozen=True, slots=True)
class Load:
    """What to send, as chosen on the command line or on locust's page."""

    modes: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    new_tokens: int
    prompts: tuple[str, ...]


def load_of(options: Namespace) -> Load:
    """The load that locust's parsed `options` describe. Raises ValueError, naming option and remedy."""
    modes = tuple(name.strip() for name in options.modes.split(",") if name.strip())
    if not modes:
        raise ValueError(f"--modes is empty: give one or more of {','.join(MODES)}")
    try:
        sizes = tuple(int(size) for size in options.batch_sizes.split(","))
        new_tokens = int(options.new_tokens)
    except ValueError as error:
        raise ValueError(
            f"--batch-sizes and --new-tokens are whole numbers like 1,4,16 and 32: {error}"
        ) from error
    if min(sizes) < 1 or new_tokens < 1:
        raise ValueError("--batch-sizes and --new-tokens are at least 1")
    return Load(modes, sizes, new_tokens, tuple(read_prompts()))


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def add_options(parser: LocustArgumentParser) -> None:
    """Options of this file, on the command line and on locust's page."""
    group = parser.add_argument_group("launchbound")
    group.add_argument(
        "--modes",
        default=",".join(default_modes()),
        help="Modes to send requests to, comma-separated; auto is one",
    )
    group.add_argument("--batch-sizes", default="1,4,16", help="Prompts per request, comma-separated")
    group.add_argument("--new-tokens", default="32", help="Tokens to generate per prompt")
    parser.add_argument(
        "--run-id",
        default=os.environ.get("LAUNCHBOUND_RUN") or f"locust-{uuid.uuid4().hex[:6]}",
        help="Name of the run in metrics and in the requests' X-Launchbound-Run",
        include_in_web_ui=False,
    )
    group.add_argument("--metrics-port", type=int, default=PORT, help="Prometheus port; 0: none")
    group.add_argument("--metrics-host", default="127.0.0.1", help="Address the Prometheus port binds")


@events.init.add_listener  # type: ignore[untyped-decorator]
def prepare(environment: Environment, **_: object) -> None:
    """Reject invalid options before any user starts, and export this load generator's metrics."""
    options = environment.parsed_options or Namespace()
    try:
        load = load_of(options)
    except ValueError as error:
        sys.stderr.write(f"locust: {error}\n")
        raise SystemExit(2) from error
    runner = environment.runner
    if isinstance(runner, LocalRunner):
        exporter = Exporter({"run": options.run_id, "modes": ",".join(load.modes)})
        exporter.users.set_function(lambda: runner.user_count)
        environment.events.request.add_listener(counted_by(exporter))  # type: ignore[no-untyped-call]
        logger.info(exporter.serve(options.metrics_port, options.metrics_host))
    LaunchboundUser.trusted_host = environment.host
    page = environment.web_ui.app if environment.web_ui else None
    if page is not None:
        page.wsgi_app = OwnPagesOnly(page.wsgi_app)  # type: ignore[method-assign]  # as Flask has it


def counted_by(exporter: Exporter) -> Callable[..., None]:
    """A listener that counts each request whose context has `mode` and `batch`."""

    def ended(
        response_time: float, exception: Exception | None, context: Mapping[str, str], **_: object
    ) -> None:
        if "mode" in context:
            outcome: Outcome = "ok" if exception is None else "error"
            exporter.observe(context["mode"], int(context["batch"]), response_time / 1e3, outcome)

    return ended


Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class OwnPagesOnly:
    """Locust's page for nobody but itself: it has no password, and a form of any page can start a load.

    Refused is what a browser sends for another page, and every name but localhost, an address, and those of
    LAUNCHBOUND_ALLOWED_HOSTS: another name may be a page's own that resolves to this machine. Locust lets
    every page read its answers; that header is taken off.
    """

    def __init__(self, page: Wsgi) -> None:
        self._page = page
        names = os.environ.get("LAUNCHBOUND_ALLOWED_HOSTS", "").lower().split(",")
        self._names = {"localhost", *filter(None, map(str.strip, names))}

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        host, origin = (environ.get(name, "").lower() for name in ("HTTP_HOST", "HTTP_ORIGIN"))
        # A browser says who asks; one that is too old to, by the origin of the page.
        same_site = environ.get("HTTP_SEC_FETCH_SITE", "none") in ("same-origin", "none")
        if not (self._allows(host) and same_site and (not origin or origin.partition("://")[2] == host)):
            start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
            return [
                b"this page answers its own address alone: open it by that, or add the name to "
                b"LAUNCHBOUND_ALLOWED_HOSTS of locust"
            ]

        def started(status: str, headers: list[tuple[str, str]], *more: object) -> object:
            kept = [item for item in headers if not item[0].lower().startswith("access-control-")]
            return start_response(status, kept, *more)

        return self._page(environ, started)

    def _allows(self, host: str) -> bool:
        name = re.sub(r":\d*$", "", host)
        if name in self._names or "*" in self._names:
            return True
        try:
            return bool(ipaddress.ip_address(name.removeprefix("[").removesuffix("]")))
        except ValueError:
            return False


class LaunchboundUser(FastHttpUser):
    """Sends one request after another, each with a random mode, batch size and prompts."""

    headers: dict[str, str] = {}  # noqa: RUF012 - of the class: the run's; of a user: with the key
    trusted_host: ClassVar[str | None] = None
    """The host given at the start, which alone gets the API key: locust's page can be sent another."""

    def on_start(self) -> None:
        """Read the options, which locust's page or the master may have changed since the last start."""
        options = self.environment.parsed_options or Namespace()
        self.headers["X-Launchbound-Run"] = options.run_id
        try:
            self.load = load_of(options)
        except ValueError as error:
            logger.error("%s", error)
            raise StopTest(str(error)) from error
        self.headers = dict(type(self).headers)
        if key := os.environ.get("LAUNCHBOUND_API_KEY"):
            if self.host == self.trusted_host:
                self.headers["Authorization"] = f"Bearer {key}"
            else:
                logger.warning("%s is not the --host of the start: it does not get the API key", self.host)

    @task
    def generate(self) -> None:
        """POST to a mode; anything but a 200 is a failure with the service's own message."""
        mode = random.choice(self.load.modes)
        batch = random.choice(self.load.batch_sizes)
        body = {"prompts": random.choices(self.load.prompts, k=batch), "max_new_tokens": self.load.new_tokens}
        with self.client.post(
            f"/v1/modes/{mode}/generate",
            json={**body, "ignore_eos": True},
            headers=self.headers,
            allow_redirects=False,
            name=f"{mode} b={batch}",
            context={"mode": mode, "batch": str(batch)},
            catch_response=True,
        ) as response:
            if response.status_code != 200:
                response.failure(message_of(response))


def message_of(response: FastResponse) -> str:
    """The service's error message, or the client's own error where no response came."""
    try:
        return str(json.loads(response.text or "")["error"]["message"])
    except (ValueError, KeyError, TypeError):
        detail = getattr(response, "error", None) or (response.text or "")[:200]
        return f"status {response.status_code}: {detail}"
