"""Plain locust with the repository's locust file, as a person runs it."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from loadtests.run.target import samples
from tests.support.fake_service import Script, fake_service
from tests.support.plain_locust import ROOT, command, free_port, ran, scrape_once
from tests.support.serving import until

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


def test_every_mode_and_batch_has_a_row_of_its_own() -> None:
    script = Script()

    def all_answered() -> bool:
        """Two users have two requests on their way at most: who began a third has an answer."""
        begun = Counter((mode, len(body["prompts"])) for mode, body in script.bodies)
        return len(begun) == 4 and min(begun.values()) >= 3

    with fake_service(script) as url:
        done = locust(
            url,
            *("--modes", "eager,auto", "--batch-sizes", "1,4", "--new-tokens", "7"),
            until_seen=all_answered,
        )
    assert done.returncode == 0, done.stderr
    names = set(re.findall(r"^POST +(\S+ b=\d+) ", done.stdout + done.stderr, flags=re.MULTILINE))
    assert names == {"eager b=1", "eager b=4", "auto b=1", "auto b=4"}
    assert {mode for mode, _ in script.bodies} == {"eager", "auto"}
    assert {len(body["prompts"]) for _, body in script.bodies} == {1, 4}
    assert {body["max_new_tokens"] for _, body in script.bodies} == {7}


def test_prompts_come_from_the_file_that_is_named(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    script = Script()
    path.write_text('{"text": "only this"}\n')
    with fake_service(script) as url:
        locust(url, "--prompt-file", str(path), until_seen=lambda: len(script.bodies) > 3)
    assert {prompt for _, body in script.bodies for prompt in body["prompts"]} == {"only this"}


def test_what_is_not_a_200_is_a_failure_with_the_services_message() -> None:
    script = Script(fail_after=3)
    with fake_service(script) as url:
        done = locust(url, until_seen=lambda: len(script.bodies) > 5)
    assert done.returncode == 1
    assert "the engine broke" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--modes", ","], "--modes is empty"),
        (["--batch-sizes", "one"], "whole numbers"),
        (["--new-tokens", "0"], "at least 1"),
        (["--prompt-file", "missing.jsonl"], "cannot read prompts"),
    ],
)
def test_wrong_options_are_refused_at_once_with_the_remedy(options: list[str], message: str) -> None:
    done = ran(command("http://127.0.0.1:1", *TWO_USERS, *options))
    assert done.returncode == 2
    assert message in done.stderr


def test_a_metrics_port_in_use_is_reported_and_does_not_stop_the_load() -> None:
    script = Script()
    with socket.socket() as taken, fake_service(script) as url:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = locust(url, "--metrics-port", port, until_seen=lambda: script.bodies)
    assert done.returncode == 0, done.stderr
    assert "load metrics are not exported" in done.stderr
    assert script.bodies


@pytest.fixture
def scraped() -> Iterator[str]:
    """The load generator's own metrics while it runs."""
    port = free_port()
    with fake_service(Script()) as url:
        options = ["--metrics-port", str(port), "--modes", "eager", "--run-time", "60s"]
        process = subprocess.Popen(
            command(url, *TWO_USERS, *options),
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield scrape_once(
                port, lambda text: 'outcome="ok"' in text and "launchbound_loadtest_users 2.0" in text
            )
        finally:
            process.terminate()
            process.wait()


def test_the_load_generator_shows_users_requests_latency_and_its_run(scraped: str) -> None:
    found = samples(
        scraped,
        "launchbound_loadtest_users",
        "launchbound_loadtest_requests_total",
        "launchbound_loadtest_latency_seconds_count",
        "launchbound_loadtest_run_info",
    )
    by_name = {name: dict(labels) for name, labels in found}
    assert len(by_name) == 4
    assert by_name["launchbound_loadtest_requests_total"].keys() == {"mode", "batch", "outcome"}
    assert by_name["launchbound_loadtest_run_info"]["run"].startswith("locust-")
    assert "_created" not in scraped


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


def test_only_the_host_of_the_start_gets_the_key_and_not_one_from_the_page() -> None:
    given, other = Script(), Script()
    with (
        fake_service(given) as at,
        fake_service(other) as elsewhere,
        page_of(at, LAUNCHBOUND_API_KEY="secret") as page,
    ):
        for host, script in ((at, given), (elsewhere, other)):
            form = {"user_count": 1, "spawn_rate": 1, "host": host}
            assert httpx.post(f"{page}/swarm", data=form).status_code == 200
            until(lambda script=script: script.headers, "a request")
            assert httpx.post(f"{page}/stop").status_code == 200
    assert all("authorization" not in headers for headers in other.headers)
    assert all(headers["authorization"] == "Bearer secret" for headers in given.headers)


def test_the_page_answers_only_itself_and_no_page_may_read_it() -> None:
    script = Script()
    with fake_service(script) as at, page_of(at, LAUNCHBOUND_ALLOWED_HOSTS="load.example") as page:
        place = page.removeprefix("http://")
        form = {"user_count": 1, "spawn_rate": 1, "host": at}
        for foreign in (
            {"Origin": "http://stranger.example"},
            {"Origin": "null"},
            {"Origin": "http://[broken"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site", "Origin": page},
            {"Host": "stranger.example"},
            {"Host": f"stranger.example:{place.rpartition(':')[2]}"},
            {"Host": "[broken"},
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
        assert httpx.post(f"{page}/swarm", data=form, headers=own).status_code == 200
        until(lambda: script.bodies, "a request")


def _answered(url: str) -> bool:
    """Whether somebody answers there."""
    try:
        return bool(httpx.get(url).status_code)
    except httpx.TransportError:
        return False
