"""Why a service that a command started has ended, by the last of its log."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from service.front.launch import last_log_line
from service.front.logs.formats import TextFormatter


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
