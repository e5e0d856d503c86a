"""`serve` as a process of its own: exit codes, draining at SIGTERM, its log, and nothing left behind."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from typer.testing import CliRunner

import launchbound
from service.front.app import serve
from service.front.settings import Settings
from tests.support.processes import gone
from tests.support.serving import BODY, PATIENCE_SECONDS, fake_engine_command, until

pytestmark = pytest.mark.slow

SERVE = """
import sys
from service.front import app
from service.front.settings import Settings
app.ENGINE_COMMAND = sys.argv[1:]
sys.exit(app.serve(Settings(port=0, drain_seconds=60, batch_sizes=[1, 4], log_format="json")))
"""


@contextmanager
def served(log: Path, **options: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-c", SERVE, *fake_engine_command(**options)]
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
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


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def lines_of(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def await_ready(url: str, status: int = 200) -> None:
    until(lambda: httpx.get(f"{url}/health/ready", trust_env=False).status_code == status, "readiness")


def engine_of(process: subprocess.Popen[str]) -> psutil.Process:
    return until(lambda: psutil.Process(process.pid).children(), "the engine")[0]


COMPONENTS = ("start", "request", "engine", "mode", "server")


def test_sigterm_finishes_what_runs_refuses_what_is_new_and_exits_with_0_and_every_line_is_an_object(
    tmp_path: Path, log: Path
) -> None:
    with served(log, says="a library's warning") as (process, url):
        await_ready(url)
        engine = engine_of(process)
        generate = f"{url}/v1/modes/eager/generate"
        hold = {**BODY, "prompts": [f"!hold {tmp_path / 'go'}"], "stream": True}
        mine = {"X-Request-ID": "mine"}
        with httpx.stream("POST", generate, json=hold, headers=mine, trust_env=False) as running_one:
            lines = running_one.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            await_ready(url, status=503)  # it drains
            refused = httpx.post(generate, json=BODY, headers={"X-Request-ID": "late"}, trust_env=False)
            assert (refused.status_code, refused.json()["error"]["type"]) == (503, "draining")
            assert int(refused.headers["retry-after"]) > 0
            assert process.poll() is None
            (tmp_path / "go").touch()
            assert "event: result" in list(lines)
        assert process.wait(PATIENCE_SECONDS) == 0
        assert not engine.is_running()
    written = lines_of(log)
    told = {name: [line for line in written if line["component"] == name] for name in COMPONENTS}
    assert all(told.values()), {line["component"] for line in written}
    assert any(url in line["message"] for line in told["start"])
    assert [line["id"] for line in told["request"]] == ["late", "mine"]
    assert "a library's warning" in [line["message"] for line in told["engine"] if "message" in line]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_while_idle_ends_front_and_engine(number: signal.Signals, log: Path) -> None:
    with served(log) as (process, url):
        await_ready(url)
        engine = engine_of(process)
        process.send_signal(number)
        assert process.wait(PATIENCE_SECONDS) == 0
        assert not engine.is_running()


def test_the_engine_ends_with_a_front_that_is_killed_even_where_it_is_stopped(log: Path) -> None:
    with served(log) as (process, url):
        await_ready(url)
        engine = engine_of(process)
        engine.suspend()
        process.kill()
        process.wait(PATIENCE_SECONDS)
        until(lambda: gone(engine.pid), "the end of the engine")


def test_one_signal_ends_a_service_whose_engine_hears_nothing_within_ten_seconds(log: Path) -> None:
    """In warm-up, in one long call, and suspended."""
    with served(log, states={"eager": "warming"}, deaf=True) as (process, url):
        engine = engine_of(process)
        until(lambda: httpx.get(f"{url}/v1/modes", trust_env=False).status_code == 200, "the front")
        engine.suspend()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert gone(engine.pid)


def test_a_second_signal_kills_an_engine_that_hears_nothing(log: Path) -> None:
    with served(log, deaf=True) as (process, url):
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


def test_settings_that_the_engine_refuses_end_the_service_with_2_and_a_line(log: Path) -> None:
    with served(log, exit=2) as (process, _):
        assert process.wait(PATIENCE_SECONDS) == 2
    last = lines_of(log)[-1]
    assert (last["level"], last["component"]) == ("error", "service")
    assert "exit code 2; see its message above" in last["message"]


def test_a_service_that_was_up_stays_up_where_its_later_engines_refuse(log: Path, tmp_path: Path) -> None:
    with served(log, later_exit=[2, str(tmp_path / "started")]) as (process, url):
        await_ready(url)
        generate = f"{url}/v1/modes/eager/generate"
        died = httpx.post(generate, json={**BODY, "prompts": ["!die 2"]}, trust_env=False)
        assert "exit code 2" in died.json()["error"]["message"]
        refused = until(lambda: refusal_with(generate, "exit code 2", "starts in 1.0 s"), "the second end")
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) > 0
        assert httpx.get(f"{url}/health/live", trust_env=False).status_code == 200
        assert process.poll() is None


def refusal_with(url: str, *texts: str) -> httpx.Response | None:
    answer = httpx.post(url, json=BODY, trust_env=False)
    return answer if all(text in answer.json()["error"]["message"] for text in texts) else None


def test_what_no_service_can_start_with_is_exit_code_2_in_our_words_before_an_engine_is_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("service.front.app.set_up", lambda form: None)
    monkeypatch.setattr("service.front.app.create_app", None)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # of a service that another test began
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert serve(Settings(port=taken.getsockname()[1])) == 2
    monkeypatch.setenv("WEB_CONCURRENCY", "2")
    assert serve(Settings(port=0)) == 2
    told = capsys.readouterr().err
    for said in ("cannot listen on 127.0.0.1", "choose another --port", "one front process"):
        assert said in told
    ended = CliRunner().invoke(launchbound.app, ["serve", "--batch-sizes=0"])
    assert ended.exit_code == 2
    assert ended.stderr == "launchbound: batch_sizes: batch sizes lie between 1 and 4096, got [0]\n"


def test_engine_cores_outside_the_share_of_the_service_are_refused_in_our_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(port=0, engine_cpus=[min(os.sched_getaffinity(0))])
    monkeypatch.setattr("service.front.app.create_app", lambda *_, **__: None)
    monkeypatch.setattr("service.front.app.set_up", lambda form: None)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {999})
    assert serve(settings) == 2
    assert "this process may use cores [999]; choose among these" in capsys.readouterr().err
