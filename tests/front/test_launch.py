"""Whether a service that a command started has ended, and why, by the last of its log."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from service.front import launch
from service.front.launch import LaunchError, last_log_line, launched
from service.front.logs import TextFormatter


def line(name: str, level: int, message: str) -> str:
    return TextFormatter().format(logging.LogRecord(name, level, __file__, 1, message, (), None))


OF_ENGINE = line("launchbound.engine", logging.WARNING, "pytorch_model.bin is a pickle, which is refused")
NOISE = line("launchbound.engine", logging.INFO, "[W] a library says something")
LAST = line("launchbound", logging.ERROR, "the engine ended with exit code 2")


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([OF_ENGINE, NOISE, LAST], "pytorch_model.bin is a pickle, which is refused"),
        ([NOISE, LAST], "the engine ended with exit code 2"),
        (
            ["launchbound: port: Input should be less than 65536"],
            "launchbound: port: Input should be less than 65536",
        ),
        ([], "it logged nothing"),
    ],
)
def test_it_is_the_last_warning_of_its_engine_else_its_own_last_line(
    tmp_path: Path, lines: list[str], reason: str
) -> None:
    log = tmp_path / "service.log"
    log.write_text("".join(f"{text}\n" for text in lines))
    assert last_log_line(log) == reason


ROOT = Path(__file__).parents[2]
SERVICE = """\
import signal, sys
print("launchbound: serving on http://127.0.0.1:9", flush=True)
print("a last word", file=sys.stderr, flush=True)
{then}
"""
"""Stands for the command line where a service is started."""


class Lost(Exception):
    """Nothing answers."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("then", "raised", "reaches"),
    [
        ("", Lost(), LaunchError),
        ("", OSError(), OSError),
        ("signal.pause()", Lost(), Lost),
    ],
    ids=["ended", "another error", "runs"],
)
def test_that_nothing_answers_is_the_end_of_the_service_only_where_it_has_ended(
    then: str, raised: Exception, reaches: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "launchbound.py").write_text(SERVICE.format(then=then))
    monkeypatch.chdir(tmp_path)
    if then:
        monkeypatch.setattr(launch, "ENDED_WITHIN_SECONDS", 0.1)
    path = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    with pytest.raises(reaches) as error, launched([], tmp_path / "log", path, lost=(Lost,)):
        raise raised
    assert (str(error.value) == "the service ended: a last word") == (reaches is LaunchError)
