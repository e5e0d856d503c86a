"""What commands say and end with: examples, parity, packages that are missing, replicas."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import launchbound
from launchbound import app
from loadtests.plan.plan_file import DTYPES
from loadtests.plan.presets import PRESETS
from service.cli.check import described
from service.cli.options import EXIT_BAD_INPUT
from service.ray_cluster import environment
from service.records import Batching, ModeStatus, Parity, Phase
from service.study_names import PROBES
from tests.support.made_plans import make_plan
from tests.support.made_results import make_results

COMMANDS = {name: one for name, one in get_command(app).commands.items() if not one.hidden}  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_of_each_command_is_one_that_it_takes(name: str) -> None:
    said, _, example = str(COMMANDS[name].epilog).partition(": ")
    program, verb, *arguments = shlex.split(example)
    assert (said, program, verb) == ("Example", "launchbound", name)
    COMMANDS[name].make_context(verb, arguments)


# Options of which only some values are known


LISTED: list[tuple[str, str, tuple[str, ...]]] = [
    ("serve", "--dtype", ("auto", *DTYPES)),
    ("serve", "--batching", get_args(Batching)),
    ("serve", "--log-format", ("text", "json")),
    ("serve", "--log-requests", ("all", "failed", "off")),
    ("anatomy", "--phase", get_args(Phase)),
    ("sweep", "--preset", PRESETS),
    ("run", "--preset", PRESETS),
    ("fleet", "--preset", PRESETS),
    ("probe", "name", tuple(PROBES)),
]


@pytest.mark.parametrize(("verb", "option", "values"), LISTED)
def test_the_values_of_a_closed_list_are_offered_and_others_are_refused_in_one_line(
    verb: str, option: str, values: tuple[str, ...]
) -> None:
    (parameter,) = [one for one in COMMANDS[verb].params if option in one.opts]
    with COMMANDS[verb].make_context(verb, [], resilient_parsing=True) as context:
        assert tuple(item.value for item in parameter.shell_complete(context, "")) == values
    before = ["a.py:build"] if verb == "run" else []
    argument = "nothing" if option == "name" else f"{option}=nothing"
    found = CliRunner().invoke(launchbound.app, [verb, *before, argument])
    assert found.exit_code == EXIT_BAD_INPUT
    (line,) = found.stderr.splitlines()
    assert line == (
        f"launchbound: Invalid value for '{option}': 'nothing' is not one of {', '.join(map(repr, values))}."
    )


# What `parity` prints of a mode


def test_a_mode_that_fails_has_its_whole_name_and_its_reason() -> None:
    parity = Parity(
        passed=False, max_abs_logit_difference=3.0, tolerance=1e-4, positions=10, differing_tokens=9,
        near_ties=0,
    )  # fmt: skip
    failed = ModeStatus(
        mode="reduce-overhead", removes="", state="failed", effective="compiled-cpp", parity=parity,
        detail="far off",
    )  # fmt: skip
    assert described(failed) == (
        "reduce-overhead (as compiled-cpp): NO parity: far off; largest logit difference 3.00e+00, tolerance "
        "1.00e-04; 9 of 10 tokens differ, 0 near ties"
    )
    broken = ModeStatus(
        mode="eager", removes="", state="failed", effective="eager", detail="CppCompileError: no g++"
    )
    assert described(broken) == "eager: NO parity: CppCompileError: no g++"


# Commands where the packages of the extra `report` are not installed


PROGRAM = "import sys; sys.modules['polars'] = None; "
COMMAND = PROGRAM + "import launchbound; launchbound.app()"
CONCLUDE = PROGRAM + (
    "from pathlib import Path\nfrom rich.console import Console\n"
    "from loadtests.run.sweep import SweepResult\nfrom loadtests.run.run_file import read_run\n"
    "from service.cli.sweep import _reported\nfolder = Path(sys.argv[1])\n"
    "raise SystemExit(_reported(folder, Console(), SweepResult(folder, read_run(folder), ())))"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_results(tmp_path, plan=make_plan("quick", 1, ["eager", "compiled"], [1]))


def without_polars(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("verb", "count"), [("compare", 2), ("report", 1)])
def test_what_needs_them_is_bad_input_and_names_the_extra(verb: str, count: int, folder: Path) -> None:
    done = without_polars(COMMAND, verb, *[str(folder)] * count)
    assert done.returncode == 2, done.stderr
    assert "polars is not installed here: run `pip install -e '.[report]'`" in done.stderr
    assert done.stdout == ""


def test_a_sweep_keeps_its_exit_code_and_leaves_the_report_for_later(folder: Path) -> None:
    done = without_polars(CONCLUDE, str(folder))
    assert done.returncode == 0, done.stderr
    assert "run `pip install -e '.[report]'`" in done.stdout
    assert f"made later by `launchbound report {folder}`" in done.stdout
    last = json.loads(done.stdout.splitlines()[-1])
    assert last == {"path": str(folder), "headline": None, "valid": True}


# Options of `serve --replicas` that cannot be meant, and a machine without Ray


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


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"serve", "stack"}))
def test_each_command_that_prints_a_result_prints_it_as_json_too(name: str) -> None:
    assert "--json" in {option for one in COMMANDS[name].params for option in one.opts}


# What a help waits for


HEAVY = {
    "fastapi", "locust", "msgspec", "numpy", "prometheus_client", "pydantic", "rich", "scipy", "torch",
}  # fmt: skip
IMPORTED = (
    "import sys, launchbound\ntry: launchbound.app()\nfinally: print(*sorted(sys.modules), file=sys.stderr)"
)


@pytest.mark.parametrize(("verb", "of_typer"), [([], set()), (["sweep"], {"pydantic"})])
def test_a_help_imports_no_package_that_only_a_running_verb_needs(
    verb: list[str], of_typer: set[str]
) -> None:
    command = [sys.executable, "-c", IMPORTED, *verb, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = set(done.stderr.split())
    assert "typer" in imported
    assert imported & HEAVY <= of_typer
