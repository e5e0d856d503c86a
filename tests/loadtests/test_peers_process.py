"""A rival's process and environment: its answers are taken, and whatever goes wrong is named."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from loadtests.peers import catalogue, group_keeper
from loadtests.peers.catalogue import RUNTIMES, SERVERS, NotInstalled, Rival, interpreter
from loadtests.peers.contestants import Client, RuntimeCaller
from loadtests.peers.process import RivalError, RivalProcess
from loadtests.peers.reference import TIE, ReferenceRow, difference, text_difference
from tests.support.processes import descendants, gone
from tests.support.serving import PATIENCE_SECONDS, until

NEW = 4
LOAD = {"folder": "f"}
CALL = {"tokens": [[1, 7]], "new_tokens": NEW}


def row(last: int = 7, margin: float = 1.0) -> ReferenceRow:
    """A prompt that is continued by its own last token."""
    return ReferenceRow(
        prompt="p",
        prompt_tokens=[1, last],
        completion="x",
        completion_tokens=[last] * NEW,
        margins=[margin] * NEW,
    )


@contextmanager
def rival(behaviour: str, folder: Path) -> Iterator[RivalProcess]:
    command = [sys.executable, "-m", "tests.support.fake_rival", behaviour]
    with RivalProcess(command, folder / "rival.log") as process:
        yield process


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [("right", None), ("wrong", "row 0, token 3: 8 instead of 7, whose logit leads by 1")],
)
def test_a_call_has_the_rivals_own_seconds_and_its_difference(
    behaviour: str, said: str | None, tmp_path: Path
) -> None:
    with rival(behaviour, tmp_path) as process:
        called = RuntimeCaller(process).call([row(7), row(9)])
    assert (called.seconds, called.difference) == (0.002, said)
    assert process._process.returncode == 0


@pytest.mark.parametrize(
    ("behaviour", "asked", "said"),
    [
        ("garbage", [CALL], "not JSON"),
        ("silent", [CALL], "no answer within 1 s"),
        ("dies", [CALL] * 4, "code 3: a last word"),
        ("cannot load", [LOAD], "unknown architecture"),
    ],
)
def test_what_is_no_answer_is_an_error_that_names_it(
    behaviour: str, asked: list[dict[str, object]], said: str, tmp_path: Path
) -> None:
    with rival(behaviour, tmp_path) as process:
        for document in asked[:-1]:
            process.ask(document, 60.0)
        with pytest.raises(RivalError, match=said):
            process.ask(asked[-1], 1.0 if behaviour == "silent" else 60.0)


@pytest.mark.parametrize("answer", [b"<html>", b"[1]", b"\xff"])
def test_what_a_server_answers_is_a_json_object_or_an_error(answer: bytes) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.handle_request).start()
        with pytest.raises(RivalError, match="answered no JSON object"):
            Client(f"http://127.0.0.1:{server.server_port}").generate("/generate", ["p"], 1)


DRIVER = """
import sys
from pathlib import Path
from loadtests.peers.process import RivalProcess
command = [sys.executable, "-m", "tests.support.fake_rival", "starts another"]
process = RivalProcess(command, Path(sys.argv[1]))
print(process.ask({"folder": "f"}, 60.0)["settings"]["started"], flush=True)
process.ask({"tokens": [[1]], "new_tokens": 1}, 600.0)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_a_rival_and_what_it_has_started_end_with_a_driver_that_is_killed(
    number: signal.Signals, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        other = int(driver.stdout.readline())
        started = descendants(driver.pid)
        assert other in started
        assert len(started) == 3
        driver.send_signal(number)
        driver.wait(PATIENCE_SECONDS)
        until(lambda: all(gone(pid) for pid in started), "the end of the rival and of what it has started")


def test_what_a_rival_has_started_ends_with_it() -> None:
    """As where the driver is killed and the rival's input ends before the kernel's signal arrives."""
    command = [sys.executable, "-m", "tests.support.fake_rival", "starts another"]
    with subprocess.Popen(
        [sys.executable, group_keeper.__file__, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as keeper:
        told, _ = keeper.communicate(json.dumps(LOAD) + "\n", PATIENCE_SECONDS)
    assert keeper.returncode == 0
    other = json.loads(told)["settings"]["started"]
    until(lambda: gone(other), "the end of what the rival has started")


def test_tokens_and_texts_may_differ_only_where_a_tie_of_logits_explains_it() -> None:
    other = [[7, 7, 8, 8]]
    assert difference([[7] * NEW], [row()]) is None
    assert difference(other, [row(margin=TIE / 2)]) is None
    assert difference(other, [row(margin=TIE * 2)]) is not None
    assert difference([[7] * 3], [row(margin=TIE / 2)]) is not None
    assert difference([], [row()]) is not None
    assert text_difference(["x"], [row()]) is None
    assert text_difference(["y"], [row()]) is not None
    assert text_difference(["y"], [row(margin=TIE / 2)]) is None
    assert text_difference(["x", "x"], [row()]) is not None


@pytest.fixture
def requirements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The requirements file of every rival, whose environments are made in the test's folder."""
    path = tmp_path / "some.txt"
    monkeypatch.setattr(Rival, "requirements", path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return path


def test_what_pip_cannot_install_is_said_in_its_words(
    requirements: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = f'#!/bin/sh\nexec {sys.executable} "$@"\n'

    def create(folder: Path, **_: object) -> None:
        """One whose pip is that of these tests, in no time."""
        python = Path(folder, "bin", "python")
        python.parent.mkdir(parents=True)
        python.write_text(own)
        python.chmod(0o755)

    monkeypatch.setattr(catalogue.venv, "create", create)
    requirements.write_text(f"absent @ file://{tmp_path}/absent-1.0-py3-none-any.whl\n")
    with pytest.raises(NotInstalled, match="absent"):
        interpreter(RUNTIMES[0], print)
    assert not list(tmp_path.rglob(catalogue.STAMP))


def test_an_environment_is_made_again_only_for_other_requirements(
    requirements: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = list[str]()
    monkeypatch.setattr(
        catalogue.venv, "create", lambda folder, **_: Path(folder).mkdir(parents=True, exist_ok=True)
    )
    monkeypatch.setattr(catalogue, "_pip", lambda python, *arguments: ran.append(arguments[0]))
    for version in (1, 1, 2):
        requirements.write_text(f"one=={version}\n")
        interpreter(RUNTIMES[0], print)
    assert ran == ["install", "install"]


def test_every_rival_has_a_worker_and_pinned_requirements() -> None:
    rivals = (*RUNTIMES, *SERVERS)
    assert len({rival.name for rival in rivals}) == len(rivals)
    for one in rivals:
        assert Path(catalogue.__file__).with_name("rivals").joinpath(f"{one.worker}.py").is_file()
        lines = [line for line in one.requirements.read_text().splitlines() if line and line[0] != "#"]
        assert all("==" in line for line in lines)
        assert "torch==2.13.0" in lines
