"""Plain locust with the repository's locust file, as a person runs it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import httpx
import pytest

from loadtests.run.target import samples
from service.modes import MODES, default_modes
from tests.support.fake_service import Script, fake_service
from tests.support.serving import until

ROOT = Path(__file__).parents[2]
LOCUSTFILE = ROOT / "loadtests" / "locustfile.py"


def command(url: str, *options: str) -> list[str]:
    common = ["--headless", "--loglevel", "INFO", "--metrics-port", "0"]
    return [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--host", url, *common, *options]


def ran(arguments: list[str], cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run locust until it ends, without this package's folder given by the environment."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        arguments, capture_output=True, text=True, cwd=cwd, env=environment, timeout=60, check=False
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def scrape_once(port: int, holds: Callable[[str], bool]) -> str:
    """The first answer of a load generator's metrics for which `holds`; fails after 30 s."""

    def answer() -> str | None:
        try:
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
                text = str(response.read().decode())
        except (URLError, OSError):
            return None
        return text if holds(text) else None

    return str(until(answer, "such an answer", seconds=30))


pytestmark = pytest.mark.slow

TWO_USERS = ("--users", "2", "--spawn-rate", "2")


def locust(url: str, *options: str, until_seen: Callable[[], object]) -> subprocess.CompletedProcess[str]:
    """Run locust until what it has to do was seen, then have it end as a person does: no time is enough for
    every machine.
    """
    process = subprocess.Popen(
        command(url, *TWO_USERS, *options, "--run-time", "90s"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: until_seen() or process.poll() is not None, "what locust has to do")
    finally:
        process.terminate()
        said, errors = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, said, errors)


def test_every_mode_and_batch_has_a_row_of_its_own_and_the_load_generator_shows_itself() -> None:
    script, port, shown = Script(), free_port(), list[str]()

    def seen() -> bool:
        """Two users have two requests on their way at most: who began a third has an answer."""
        begun = Counter((mode, len(body["prompts"])) for mode, body in script.bodies)
        if len(begun) == 4 and min(begun.values()) >= 3:
            shown.append(scrape_once(port, lambda text: 'outcome="ok"' in text and "_users 2.0" in text))
        return bool(shown)

    with fake_service(script) as url:
        done = locust(
            url,
            *("--modes", "eager,auto", "--batch-sizes", "1,4", "--new-tokens", "7"),
            *("--metrics-port", str(port)),
            until_seen=seen,
        )
    assert done.returncode == 0, done.stderr
    names = set(re.findall(r"^POST +(\S+ b=\d+) ", done.stdout + done.stderr, flags=re.MULTILINE))
    assert names == {"eager b=1", "eager b=4", "auto b=1", "auto b=4"}
    assert {mode for mode, _ in script.bodies} == {"eager", "auto"}
    assert {len(body["prompts"]) for _, body in script.bodies} == {1, 4}
    assert {body["max_new_tokens"] for _, body in script.bodies} == {7}
    found = samples(
        shown[0],
        "launchbound_loadtest_users",
        "launchbound_loadtest_requests_total",
        "launchbound_loadtest_latency_seconds_count",
        "launchbound_loadtest_run_info",
    )
    by_name = {name: dict(labels) for name, labels in found}
    assert len(by_name) == 4
    assert by_name["launchbound_loadtest_requests_total"].keys() == {"mode", "batch", "outcome"}
    assert by_name["launchbound_loadtest_run_info"]["run"].startswith("locust-")
    assert "_created" not in shown[0]


def test_what_is_not_a_200_is_a_failure_and_a_metrics_port_in_use_does_not_stop_the_load() -> None:
    script = Script(fail_after=3)
    with socket.socket() as taken, fake_service(script) as url:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = locust(url, "--metrics-port", port, until_seen=lambda: len(script.bodies) > 5)
    assert done.returncode == 1
    assert "the engine broke" in done.stdout + done.stderr
    assert "load metrics are not exported" in done.stderr


OPTIONS = """
import json, sys
from locust.argument_parser import LocustArgumentParser
from service.modes import MODES
MODES["sixth-mode"] = MODES["eager"]
from loadtests.locustfile import add_options, load_of
parser = LocustArgumentParser()
add_options(parser)
for arguments in json.loads(sys.argv[1]):
    try:
        print(",".join(load_of(parser.parse_args(arguments)).modes))
    except ValueError as error:
        print(error)
"""


def test_wrong_options_are_refused_at_once_with_the_remedy_and_a_row_of_the_ladder_is_offered() -> None:
    """By the command one of them: it takes all refusals by one way."""
    refused = {
        (): ",".join([*default_modes(), "sixth-mode"]),
        ("--modes", ","): f"--modes is empty: give one or more of {','.join([*MODES, 'sixth-mode'])}",
        ("--batch-sizes", "one"): "whole numbers",
        ("--new-tokens", "0"): "at least 1",
    }
    code = [sys.executable, "-c", OPTIONS, json.dumps(list(refused))]
    shown = subprocess.run(code, capture_output=True, text=True, cwd=ROOT, timeout=60, check=True)
    for line, message in zip(shown.stdout.splitlines(), refused.values(), strict=True):
        assert message in line
    done = ran(command("http://127.0.0.1:1", *TWO_USERS, "--new-tokens", "0"))
    assert done.returncode == 2
    assert "at least 1" in done.stderr


@contextmanager
def page_of(at: str, **environment: str) -> Iterator[str]:
    """The address of locust's page, of a load generator against `at`."""
    port = free_port()
    web = [part for part in command(at, "--modes", "eager") if part != "--headless"]
    process = subprocess.Popen(
        [*web, "--web-host", "127.0.0.1", "--web-port", str(port)],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        page = f"http://127.0.0.1:{port}"
        until(lambda: _answered(page), "locust's page")
        yield page
    finally:
        process.terminate()
        process.wait()


def test_the_page_answers_only_itself_and_only_the_host_of_the_start_gets_the_key() -> None:
    script, other = Script(), Script()
    own_settings = {"LAUNCHBOUND_ALLOWED_HOSTS": "load.example", "LAUNCHBOUND_API_KEY": "secret"}
    with fake_service(script) as at, fake_service(other) as elsewhere, page_of(at, **own_settings) as page:
        place = page.removeprefix("http://")
        form = {"user_count": 1, "spawn_rate": 1, "host": at}
        for foreign in (
            {"Origin": "http://stranger.example"},
            {"Origin": "null"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Host": "stranger.example"},
            {"Host": f"stranger.example:{place.rpartition(':')[2]}"},
        ):
            for path in ("/", "/stats/requests", "/stats/requests/csv"):
                refused = httpx.get(page + path, headers=foreign)
                assert refused.status_code == 403, (path, foreign)
                assert not [name for name in refused.headers if name.startswith("access-control-")]
            assert httpx.post(f"{page}/swarm", data=form, headers=foreign).status_code == 403
        assert not script.bodies
        for own in (
            {},
            {"Sec-Fetch-Site": "none"},
            {"Origin": page},
            {"Host": "load.example"},
            {"Host": "[::1]:8089"},
        ):
            answer = httpx.get(f"{page}/stats/requests", headers=own)
            assert answer.status_code == 200
            assert not [name for name in answer.headers if name.startswith("access-control-")]
        own = {"Origin": page, "Sec-Fetch-Site": "same-origin"}
        for host, its in ((at, script), (elsewhere, other)):
            answer = httpx.post(f"{page}/swarm", data={**form, "host": host}, headers=own)
            assert answer.status_code == 200
            until(lambda its=its: its.headers, "a request")
            assert httpx.post(f"{page}/stop").status_code == 200
    assert all("authorization" not in headers for headers in other.headers)
    assert all(headers["authorization"] == "Bearer secret" for headers in script.headers)


def _answered(url: str) -> bool:
    """Whether somebody answers there."""
    try:
        return bool(httpx.get(url).status_code)
    except httpx.TransportError:
        return False
