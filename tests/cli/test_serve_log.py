"""`serve`'s log as a process writes it: with `json` every line of standard error is one object."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.cli.test_serve import SERVE, await_ready
from tests.support.serving import BODY, PATIENCE_SECONDS, fake_engine_command

pytestmark = pytest.mark.slow

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


def test_a_form_that_does_not_exist_is_refused_with_those_that_do() -> None:
    command = [sys.executable, "-m", "launchbound", "serve", "--log-format=xml"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "log_format" in ended.stderr
    assert "'text' or 'json'" in ended.stderr


def test_a_setting_that_is_wrong_is_told_in_our_words() -> None:
    command = [sys.executable, "-m", "launchbound", "serve", "--batch-sizes=0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert ended.stderr == "launchbound: batch_sizes: batch sizes lie between 1 and 4096, got [0]\n"
