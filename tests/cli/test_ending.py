"""What a command starts ends with it, by whatever signal; where its own service ends, it says why."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

import launchbound
from service.cli.options import EXIT_BAD_INPUT
from service.front import launch
from service.front.launch import LaunchError
from tests.support.processes import descendants, gone
from tests.support.serving import PATIENCE_SECONDS, fake_engine_command, until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

COMMANDS = {
    "sweep": ["sweep", "--modes=eager", "--batch-sizes=1", "--out=results"],
    "generate": ["generate", "x"],
    "selftest": ["selftest", "--only=parts", "--modes=eager"],
    "peers": ["peers", "--modes=eager", "--batch-sizes=1", "--out=results"],
    "startup": ["startup", "--modes=eager", "--batch-sizes=1", "--out=results"],
    "stack": ["stack", "--modes=eager", "--batch-sizes=1", "--port=0", "--prometheus-port=0"],
}

PROMETHEUS = """\
#!{python}
import socket, time
listening = socket.create_server(("127.0.0.1", 0))
print(f'msg="Listening on" address=127.0.0.1:{{listening.getsockname()[1]}}', "Server is ready", flush=True)
time.sleep(600)
"""
"""What `stack` finds on the PATH here."""

SERVICE = """
from service.front import app
from service.front.settings import Settings
app.ENGINE_COMMAND = {engine!r}
raise SystemExit(app.serve(Settings(port=0, modes=["eager"], batch_sizes=[1])))
"""


def prepared(folder: Path, engine: list[str]) -> dict[str, str]:
    """The environment of a command whose services have `engine`, and the files that it finds.

    Services are started as `-m launchbound` in this folder: a module stands for the command line there.
    """
    (folder / "launchbound.py").write_text(SERVICE.format(engine=engine))
    own = {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "LAUNCHBOUND_CACHE_FOLDER": str(folder / "cache")}
    return {**os.environ, **own}


@contextmanager
def running(arguments: list[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The command line, whose services are fronts with an engine that says nothing, so that it waits."""
    engine = fake_engine_command(silent=True)
    environment = prepared(folder, engine)
    (folder / "prometheus").write_text(PROMETHEUS.format(python=sys.executable))
    (folder / "prometheus").chmod(0o755)
    environment["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "launchbound.py"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=environment,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def whole_service(process: subprocess.Popen[str]) -> list[int]:
    until(lambda: len(descendants(process.pid)) >= 2, "front and engine")
    return descendants(process.pid)


@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("sweep", signal.SIGTERM),
        ("sweep", signal.SIGKILL),
        ("generate", signal.SIGINT),
        ("peers", signal.SIGHUP),
        ("startup", signal.SIGINT),
    ],
)
def test_front_and_engine_end_with_the_command_that_started_them(
    command: str, number: signal.Signals, tmp_path: Path
) -> None:
    """Each command takes every signal by one way, `ended_in_order`, and launches its service by one way."""
    with running(COMMANDS[command], tmp_path) as process:
        started = whole_service(process)
        process.send_signal(number)
        process.wait(PATIENCE_SECONDS)
        until(lambda: all(gone(pid) for pid in started), "the end of front and engine")
    assert process.returncode == (-number if number == signal.SIGKILL else 130)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL], ids=lambda number: number.name)
def test_service_and_prometheus_end_with_the_stack(number: signal.Signals, tmp_path: Path) -> None:
    with running(COMMANDS["stack"], tmp_path) as process:
        assert process.stdout is not None
        until(lambda: "Ctrl-C" in process.stdout.readline(), "a stack that runs")  # type: ignore[union-attr]
        started = whole_service(process)
        assert len(started) == 3
        process.send_signal(number)
        process.wait(PATIENCE_SECONDS)
        until(lambda: all(gone(pid) for pid in started), "the end of front, engine and Prometheus")
    assert process.returncode == (-number if number == signal.SIGKILL else 0)


@pytest.mark.parametrize(
    ("command", "number"),
    [("selftest", signal.SIGTERM), ("selftest", signal.SIGKILL), ("generate", signal.SIGKILL)],
)
def test_what_a_command_starts_ends_with_it_also_while_it_starts(
    command: str, number: signal.Signals, tmp_path: Path
) -> None:
    with running(COMMANDS[command], tmp_path) as process:
        started = until(lambda: descendants(process.pid), "a process of the command")
        process.send_signal(number)
        process.wait(PATIENCE_SECONDS)
        until(lambda: all(gone(pid) for pid in started), "the end of what it started")


def test_every_signal_ends_a_block_in_order_and_an_ignored_one_stays_ignored() -> None:
    """As `nohup` has it."""
    code = (
        "import signal; signal.signal(signal.SIGHUP, getattr(signal, {handler!r}))\n"
        "from service.cli.options import ended_in_order\n"
        "with ended_in_order():\n"
        "    for name in ('SIGHUP', 'SIGTERM', 'SIGINT'):\n"
        "        try: signal.raise_signal(getattr(signal, name))\n"
        "        except KeyboardInterrupt: print(name)\n"
        "print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)\n"
    )
    for handler, ended in (("SIG_IGN", []), ("SIG_DFL", ["SIGHUP"])):
        command = [sys.executable, "-c", code.format(handler=handler)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        assert done.stdout.split() == [*ended, "SIGTERM", "SIGINT", "True"]


def test_exit_codes_stand_in_the_help_and_in_the_documentation() -> None:
    shown = CliRunner().invoke(launchbound.app, ["--help"]).stdout
    documented = (ROOT / "docs" / "sweeps.md").read_text()
    for code in (0, 1, 2, 3, 4, 130):
        assert f"{code} " in shown.partition("Exit codes:")[2]
        assert f"| {code} |" in documented
    (documented_130,) = [line for line in documented.splitlines() if line.startswith("| 130 |")]
    for text in (shown.partition("130 ")[2], documented_130):
        assert all(verb in text for verb in ("sweep", "fleet", "peers", "generate", "selftest"))


REASON = "no folder nosuch: name one of tiny, small, base or an existing folder"


def ended(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """The command, whose service's engine lives as long as one that looks for a model that is not there."""
    refusing = ["bash", "-c", f"sleep 1; echo 'launchbound: {REASON}' >&2; echo '[W] noise' >&2; exit 2"]
    return subprocess.run(
        [sys.executable, str(ROOT / "launchbound.py"), *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=prepared(folder, refusing),
    )


def test_a_model_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    done = ended(COMMANDS["sweep"], tmp_path)
    said = re.search(rf"the service ended: {REASON} \(log: (.+)\)", done.stderr)
    assert said is not None, done.stderr
    assert REASON in (tmp_path / said[1]).read_text()
    assert "nothing answers" not in done.stderr + done.stdout
    assert done.returncode == EXIT_BAD_INPUT


@pytest.mark.parametrize("command", ["generate", "peers"])
def test_a_service_that_could_not_start_is_bad_input_of_every_command(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def launched(*_: object, **__: object) -> Iterator[str]:
        raise LaunchError(f"the service ended: {REASON}")
        yield ""

    monkeypatch.setattr(launch, "launched", launched)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(launchbound.app, COMMANDS[command])
    assert done.exit_code == EXIT_BAD_INPUT
    assert f"the service ended: {REASON}" in done.stderr


def test_a_selftest_has_it_as_a_failed_row(tmp_path: Path) -> None:
    done = ended(["selftest", "--only=parts", "--modes=eager", "--out=results"], tmp_path)
    assert done.returncode == 1, done.stderr
    assert f"the service ended: {REASON}" in (tmp_path / "results" / "selftest.json").read_text()
