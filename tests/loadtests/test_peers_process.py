"""A rival's process: what it answers is taken, and whatever goes wrong is named."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loadtests.peers import installation
from loadtests.peers.catalogue import RUNTIMES, SERVERS, Rival
from loadtests.peers.contestants import RuntimeCaller
from loadtests.peers.installation import NotInstalled, interpreter
from loadtests.peers.process import KEEPER, RivalError, RivalProcess
from loadtests.peers.reference import TIE, ReferenceRow, difference, text_difference
from tests.support.processes import descendants, gone
from tests.support.serving import PATIENCE_SECONDS, until

NEW = 4


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


def test_a_call_has_the_rivals_own_seconds_and_no_difference(tmp_path: Path) -> None:
    with rival("right", tmp_path) as process:
        called = RuntimeCaller("fake", process).call([row(7), row(9)])
    assert called.seconds == 0.002
    assert called.difference is None


def test_another_token_is_named_by_its_row_and_place(tmp_path: Path) -> None:
    with rival("wrong", tmp_path) as process:
        called = RuntimeCaller("fake", process).call([row(7)])
    assert called.difference is not None
    assert "row 0, token 3: 8 instead of 7" in called.difference


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [("garbage", "not JSON"), ("silent", "no answer within 1 s")],
)
def test_what_is_no_answer_is_an_error(behaviour: str, said: str, tmp_path: Path) -> None:
    with rival(behaviour, tmp_path) as process, pytest.raises(RivalError, match=said):
        process.ask({"tokens": [[1, 7]], "new_tokens": NEW}, 1.0)


def test_a_process_that_ends_is_an_error_with_its_last_word(tmp_path: Path) -> None:
    with rival("dies", tmp_path) as process:
        caller = RuntimeCaller("fake", process)
        for _ in range(3):
            caller.call([row()])
        with pytest.raises(RivalError, match="code 3: a last word"):
            caller.call([row()])


def test_an_error_that_the_rival_names_is_passed_on(tmp_path: Path) -> None:
    with rival("cannot load", tmp_path) as process, pytest.raises(RivalError, match="unknown architecture"):
        process.ask({"folder": "f"}, 60.0)


def test_a_closed_rival_has_ended(tmp_path: Path) -> None:
    with rival("right", tmp_path) as process:
        process.ask({"folder": "f"}, 60.0)
        assert process._process.poll() is None
    assert process._process.returncode == 0


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


def test_what_a_rival_has_started_ends_with_it(tmp_path: Path) -> None:
    """As where the driver is killed and the rival's input ends before the kernel's signal arrives."""
    command = [sys.executable, "-m", "tests.support.fake_rival", "starts another"]
    with subprocess.Popen(
        [sys.executable, KEEPER, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as keeper:
        told, _ = keeper.communicate('{"folder": "f"}\n', PATIENCE_SECONDS)
    assert keeper.returncode == 0
    other = json.loads(told)["settings"]["started"]
    until(lambda: gone(other), "the end of what the rival has started")


def test_tokens_may_differ_only_where_a_tie_of_logits_explains_it() -> None:
    other = [[7, 7, 8, 8]]
    assert difference([[7] * NEW], [row(margin=1.0)]) is None
    assert difference(other, [row(margin=TIE / 2)]) is None
    assert difference(other, [row(margin=TIE * 2)]) is not None
    assert difference([[7] * 3], [row(margin=TIE / 2)]) is not None
    assert difference([], [row()]) is not None


def test_texts_may_differ_only_where_a_tie_explains_it() -> None:
    assert text_difference(["x"], [row()]) is None
    assert text_difference(["y"], [row()]) is not None
    assert text_difference(["y"], [row(margin=TIE / 2)]) is None
    assert text_difference(["x", "x"], [row()]) is not None


@pytest.mark.slow
def test_what_pip_cannot_install_is_said_in_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requirements = tmp_path / "absent.txt"
    requirements.write_text(f"absent @ file://{tmp_path}/absent-1.0-py3-none-any.whl\n")
    monkeypatch.setattr(Rival, "requirements", requirements)
    with pytest.raises(NotInstalled, match="absent"):
        interpreter(RUNTIMES[0], tmp_path, lambda line: None)
    assert not list(tmp_path.rglob(installation._STAMP))


def test_an_environment_is_made_again_only_for_other_requirements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = list[str]()
    requirements = tmp_path / "some.txt"
    requirements.write_text("one==1\n")
    monkeypatch.setattr(Rival, "requirements", requirements)
    monkeypatch.setattr(
        installation.venv, "create", lambda folder, **_: Path(folder).mkdir(parents=True, exist_ok=True)
    )
    monkeypatch.setattr(installation, "_pip", lambda python, *arguments: ran.append(arguments[0]))
    for _ in range(2):
        interpreter(RUNTIMES[0], tmp_path, lambda line: None)
    assert ran == ["install"]
    requirements.write_text("one==2\n")
    interpreter(RUNTIMES[0], tmp_path, lambda line: None)
    assert ran == ["install", "install"]


def test_every_rival_has_a_worker_and_pinned_requirements() -> None:
    root = Path(__file__).parents[2]
    names = [rival.name for rival in (*RUNTIMES, *SERVERS)]
    assert len(set(names)) == len(names)
    for one in (*RUNTIMES, *SERVERS):
        assert (root / one.worker.replace(".", "/")).with_suffix(".py").is_file()
        lines = [line for line in one.requirements.read_text().splitlines() if line and line[0] != "#"]
        assert all("==" in line for line in lines)
        assert "torch==2.13.0" in lines
