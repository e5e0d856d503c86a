"""What `--help` shows works."""

from __future__ import annotations

import shlex

import pytest
from typer.main import get_command

from launchbound import app

COMMANDS = {name: one for name, one in get_command(app).commands.items() if not one.hidden}  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_of_each_command_is_one_that_it_takes(name: str) -> None:
    said, _, example = str(COMMANDS[name].epilog).partition(": ")
    program, verb, *arguments = shlex.split(example)
    assert (said, program, verb) == ("Example", "launchbound", name)
    COMMANDS[name].make_context(verb, arguments)


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"serve", "stack"}))
def test_each_command_that_prints_a_result_prints_it_as_json_too(name: str) -> None:
    assert "--json" in {option for one in COMMANDS[name].params for option in one.opts}
