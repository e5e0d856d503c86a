"""Options of `serve --replicas` that cannot be meant, and a machine without Ray."""

from __future__ import annotations

import socket
import sys

import pytest
from typer.testing import CliRunner

import launchbound
from service.cli.options import EXIT_BAD_INPUT
from service.ray_cluster import environment


def refusal(*options: str) -> str:
    found = CliRunner().invoke(launchbound.app, ["serve", *options], catch_exceptions=False)
    assert found.exit_code == EXIT_BAD_INPUT
    return found.stderr


@pytest.fixture(autouse=True)
def _environment_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in environment(None):
        monkeypatch.setenv(name, "as before")


@pytest.mark.parametrize("option", ["--replica-cpus=2", "--address=auto"])
def test_options_of_replicas_need_them(option: str) -> None:
    assert "belong to --replicas: add it, or leave them out" in refusal(option)


def test_an_address_at_which_nothing_answers_is_refused_before_ray_is_asked() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        assert f"no Ray answers at {address}" in refusal("--replicas=1", f"--address={address}")


def test_without_ray_the_remedy_is_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "service.replicas", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "ray is not installed here: run `pip install -e '.[ray]'`" in refusal("--replicas=2")
