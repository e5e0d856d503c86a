"""`serve` as a process of its own: exit codes, draining at SIGTERM, its log, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.processes import gone
from tests.support.serving import BODY, PATIENCE_SECONDS, fake_engine_command, until

pytestmark = pytest.mark.slow

SERVE = """
import sys
from service.front import app
from service.front.settings import Settings
app.ENGINE_COMMAND = sys.argv[1:]
sys.exit(app.serve(Settings(port=0, drain_seconds=60, batch_sizes=[1, 4])))
"""


@contextmanager
def served(**options: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The service as a child process, and its URL."""
    command = [sys.executable, "-c", SERVE, *fake_engine_command(**options)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        found = re.fullmatch(r"launchbound: serving on (http://127\.0\.0\.1:\d+)\n", line)
        assert found is not None, line
        yield process, found[1]
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()


def await_ready(url: str) -> None:
    until(lambda: httpx.get(f"{url}/health/ready", trust_env=False).status_code == 200, "ready")


def await_draining(url: str) -> None:
    until(lambda: httpx.get(f"{url}/health/ready", trust_env=False).status_code == 503, "draining")


def engine_of(process: subprocess.Popen[str]) -> psutil.Process:
    return until(lambda: psutil.Process(process.pid).children(), "the engine")[0]


def test_sigterm_finishes_what_runs_refuses_what_is_new_and_exits_with_0(tmp_path: Path) -> None:
    with served() as (process, url):
        await_ready(url)
        engine = engine_of(process)
        hold = {**BODY, "prompts": [f"!hold {tmp_path / 'go'}"], "stream": True}
        with httpx.stream(
            "POST", f"{url}/v1/modes/eager/generate", json=hold, trust_env=False
        ) as running_one:
            lines = running_one.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            await_draining(url)
            refused = httpx.post(f"{url}/v1/modes/eager/generate", json=BODY, trust_env=False)
            assert (refused.status_code, refused.json()["error"]["type"]) == (503, "draining")
            assert process.poll() is None
            (tmp_path / "go").touch()
            assert "event: result" in list(lines)
        assert process.wait(PATIENCE_SECONDS) == 0
        assert not engine.is_running()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_while_idle_ends_front_and_engine(number: signal.Signals) -> None:
    with served() as (process, url):
        await_ready(url)
        engine = engine_of(process)
        process.send_signal(number)
        assert process.wait(PATIENCE_SECONDS) == 0
        assert not engine.is_running()


@pytest.mark.parametrize("stopped", [False, True])
def test_the_engine_ends_with_a_front_that_is_killed_also_where_it_is_stopped(stopped: bool) -> None:
    with served() as (process, url):
        await_ready(url)
        engine = engine_of(process)
        if stopped:
            engine.suspend()
        process.kill()
        process.wait(PATIENCE_SECONDS)
        until(lambda: gone(engine.pid), "the end of the engine")


@pytest.mark.parametrize("state", ["warming", "stopped"])
def test_one_signal_ends_a_service_whose_engine_hears_nothing_within_ten_seconds(state: str) -> None:
    """In warm-up, in one long call; or suspended."""
    with served(states={"eager": "warming"}, deaf=True) as (process, url):
        engine = engine_of(process)
        until(lambda: httpx.get(f"{url}/v1/modes", trust_env=False).status_code == 200, "the front")
        if state == "stopped":
            engine.suspend()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert gone(engine.pid)


def test_a_second_signal_kills_an_engine_that_hears_nothing() -> None:
    with served(deaf=True) as (process, url):
        await_ready(url)
        engine = engine_of(process)
        process.send_signal(signal.SIGTERM)
        until(lambda: not listens(url), "the end of listening")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
        assert gone(engine.pid)


def listens(url: str) -> bool:
    try:
        httpx.get(f"{url}/health/live", trust_env=False)
    except httpx.TransportError:
        return False
    return True


def test_settings_that_the_engine_refuses_end_the_service_with_2() -> None:
    with served(exit=2) as (process, _):
        assert process.wait(PATIENCE_SECONDS) == 2


@pytest.mark.parametrize("first_end", [7, 2])
def test_a_service_that_was_up_stays_up_where_its_later_engines_refuse(first_end: int) -> None:
    with served(later_exit=2) as (process, url):
        await_ready(url)
        generate = f"{url}/v1/modes/eager/generate"
        died = httpx.post(generate, json={**BODY, "prompts": [f"!die {first_end}"]}, trust_env=False)
        assert f"exit code {first_end}" in died.json()["error"]["message"]
        refused = until(lambda: refusal_with(generate, "exit code 2", "starts in 1.0 s"), "the second end")
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) > 0
        assert httpx.get(f"{url}/health/live", trust_env=False).status_code == 200
        assert process.poll() is None


def refusal_with(url: str, *texts: str) -> httpx.Response | None:
    """The answer of generate, once its error message contains all of `texts`."""
    answer = httpx.post(url, json=BODY, trust_env=False)
    return answer if all(text in answer.json()["error"]["message"] for text in texts) else None


def serve_with(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SERVE.replace("port=0, ", ""), *fake_engine_command()]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_taken_port_ends_with_exit_code_2_and_no_engine_is_started() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = serve_with({"LAUNCHBOUND_PORT": str(taken.getsockname()[1])})
    assert ended.returncode == 2
    assert "cannot listen on 127.0.0.1" in ended.stderr
    assert "choose another --port" in ended.stderr


def test_more_than_one_worker_is_refused_with_exit_code_2() -> None:
    ended = serve_with({"WEB_CONCURRENCY": "2", "LAUNCHBOUND_PORT": "0"})
    assert ended.returncode == 2
    assert "one front process" in ended.stderr


JSON = SERVE.replace("port=0", "port=0, log_format='json'")
COMPONENTS = ("start", "request", "engine", "mode", "server")


def test_every_line_is_an_object_of_the_front_the_server_and_the_engine(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as errors:
        command = [sys.executable, "-c", JSON, *fake_engine_command(says="a library's warning")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().rpartition(" ")[2].strip()
        await_ready(url)
        headers = {"X-Request-ID": "mine"}
        httpx.post(f"{url}/v1/modes/eager/generate", json=BODY, headers=headers, trust_env=False)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    told = {component: [line for line in lines if line["component"] == component] for component in COMPONENTS}
    assert all(told.values()), {line["component"] for line in lines}
    assert told["start"][0]["address"] == url
    assert [line["id"] for line in told["request"]] == ["mine"]
    assert "a library's warning" in [line["message"] for line in told["engine"] if "message" in line]


def test_a_fault_at_the_start_is_a_line_too() -> None:
    command = [sys.executable, "-c", JSON, *fake_engine_command(exit=2)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    last = json.loads(ended.stderr.splitlines()[-1])
    assert (last["level"], last["component"]) == ("error", "service")
    assert "exit code 2; see its message above" in last["message"]


def test_a_setting_that_is_wrong_is_told_in_our_words() -> None:
    command = [sys.executable, "-m", "launchbound", "serve", "--batch-sizes=0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert ended.stderr == "launchbound: batch_sizes: batch sizes lie between 1 and 4096, got [0]\n"
