"""`launchbound run`: a module of the user's own is swept, and its answer is written as a program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import launchbound
from loadtests.run import gates
from loadtests.run.run_file import read_run
from models.workload import ModuleError, load_module
from service.cli import run, sweep
from service.cli.options import EXIT_BAD_INPUT, EXIT_FAILED, settings_from
from service.cli.run import write_programs
from tests.support.fake_service import Script, fake_service
from tests.support.made_plans import make_plan
from tests.support.made_results import edit_run, make_module, make_results

BUILD = """
import torch

def build():
    return torch.nn.Linear(4, 2).eval(), lambda batch, seed: torch.randn(batch, 4)
"""


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A factory in a file of the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("ranker.py").write_text(BUILD)
    return "ranker.py:build"


def invoked(*arguments: str) -> Any:
    return CliRunner().invoke(launchbound.app, list(arguments), catch_exceptions=False)


def refusal(*arguments: str) -> str:
    found = invoked(*arguments)
    assert found.exit_code == EXIT_BAD_INPUT, found.output
    assert len(found.stderr.strip().splitlines()) == 1
    return str(found.stderr)


Begun = list[tuple[Any, ...]]


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Begun:
    """What sweeps were begun with; each fails."""
    found: Begun = []

    def begin(*arguments: Any) -> int:
        found.append(arguments)
        return EXIT_FAILED

    monkeypatch.setattr(run, "sweep_own_service", begin)
    return found


def test_it_sweeps_a_service_of_its_own_with_the_module_by_the_preset_quick(name: str, begun: Begun) -> None:
    done = invoked(
        "run", name, "--batch-sizes", "1,8", "--dtype", "bfloat16", "--device", "cpu", "--out", "o"
    )
    assert done.exit_code == EXIT_FAILED
    (((chosen,), folder, served),) = begun
    assert (folder, served) == (Path("o"), {"dtype": "bfloat16", "device": "cpu"})
    assert (chosen.document.model, chosen.plan.preset, chosen.plan.batch_sizes) == (name, "quick", [1, 8])
    assert "aot-inductor" in chosen.plan.modes
    assert {cell.new_tokens for cell in chosen.plan.cells} == {None}


def test_of_a_sweep_that_is_not_valid_no_program_is_written(name: str, begun: Begun) -> None:
    done = invoked("run", name, "--export", "best.py")
    assert (done.exit_code, len(begun)) == (EXIT_FAILED, 1)
    assert "no program is written: the sweep is not valid" in done.stderr
    assert not Path("best.py").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["tiny", "--export=a.py"], "writes the program of a module of your own, and tiny is none"),
        (["ranker.py:build", "--export=a.py", "--preset=standard"], "leave it out, or take the preset quick"),
        (["ranker.py:build", "--export=none/a.py"], "none for --export: make it, or name another"),
        (["ranker.py:build", "--modes=compiled"], "every speed-up is against it, add it to the modes"),
        (["ranker.py:build", "--batch-sizes=0"], "batch sizes are at least 1"),
        (["ranker.py:build", "--preset=huge"], "'huge' is not one of 'quick', 'standard', 'full', 'gpu'"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_measured(
    name: str, begun: Begun, options: list[str], said: str
) -> None:
    assert said in refusal("run", *options)
    assert not begun


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("command", "missing", "said"),
    [
        (["run"], "no_such.py:build", "no file no_such.py (current folder: "),
        (["run", "--preset=standard"], "nowhere.net:build", "no module 'nowhere.net' in "),
        (["serve", "--model"], "./ranker:build", "did you mean "),
        (["sweep", "--model"], "ranker.py", "'ranker.py' names no factory: "),
    ],
)
def test_a_module_that_is_not_there_is_refused_in_the_engines_words_and_before_torch_is_imported(
    name: str, command: list[str], missing: str, said: str
) -> None:
    code = """import sys, launchbound
try:
    launchbound.app(sys.argv[1:])
finally:
    print("torch" in sys.modules)"""
    done = subprocess.run(
        [sys.executable, "-c", code, *command, missing],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (EXIT_BAD_INPUT, "False\n")
    with pytest.raises(ModuleError) as refused:
        load_module(missing, torch.device("cpu"), torch.float32)
    assert done.stderr == f"launchbound: {refused.value}\n"
    assert said in done.stderr
    assert [path.name for path in Path().iterdir()] == ["ranker.py"]


def test_what_only_running_the_code_can_tell_is_left_to_the_engine(name: str) -> None:
    Path("pack").mkdir()
    Path("pack/__init__.py").write_text("raise SystemExit('this is not to run')")
    for module in ("ranker.py:none", "pack.net:build", "json.net:build"):
        assert settings_from(model=module).model == module
    # Other machines may have the file.
    assert settings_from(True, model="no_such.py:build").model == "no_such.py:build"


@pytest.mark.parametrize("verb", ["run", "sweep", "peers"])
def test_the_lines_of_a_help_end_where_the_terminal_does(verb: str) -> None:
    # A process: Typer's runner for tests has 80 columns, whatever it is told.
    command = [sys.executable, "-m", "launchbound", verb, "--help"]
    environment = os.environ | {"COLUMNS": "300"}
    shown = subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout
    (line,) = [line for line in shown.splitlines() if "Exit codes: " in line]
    assert line.rstrip().endswith(" 130 interrupted.")
    assert "Example: launchbound" in shown


@pytest.mark.parametrize(
    "command",
    [["fleet", "--models=ranker.py:build"], ["peers", "--model=ranker.py:build"],
     ["selftest", "--model=ranker.py:build"]],
)  # fmt: skip
def test_commands_of_language_models_refuse_a_module_and_name_the_command_for_it(
    name: str, command: list[str]
) -> None:
    assert f"`launchbound run {name}` measures it" in refusal(*command)


def test_a_selftest_refuses_a_module_that_the_environment_names(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAUNCHBOUND_MODEL", name)
    assert f"{name} is a module of your own" in refusal("selftest")


def test_the_plan_of_a_module_has_no_prompts(name: str) -> None:
    shown = invoked("sweep", "--model", name, "--dry-run").stdout
    assert "eager b=1 c=1 control, 2 requests per round" in shown
    assert "short" not in shown


@pytest.mark.slow
def test_a_module_is_run_reported_and_exported(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "MOST_CLIENT_CPU", 99.0)  # has no meaning against a stand-in
    with fake_service(Script(module=True)) as url:
        monkeypatch.setattr(sweep, "_own_service", lambda *_: nullcontext(url))
        done = invoked(
            "run", name, "--modes", "eager,inference_mode,compiled", "--batch-sizes", "1,4", "--out", "o",
            "--export", "best.py", "--json",
        )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    (line,) = done.stdout.splitlines()
    headline = json.loads(line)["headline"]
    assert [one["ship"] for one in headline["batches"]] == ["compiled", "compiled"]
    assert headline["batches"][0]["payback_calls"] is None
    written = [Path(f"best-b{batch}.py") for batch in (1, 4)]
    assert f"program: {', '.join(map(str, written))}" in done.stderr
    for path, batch in zip(written, (1, 4), strict=True):
        text = path.read_text()
        compile(text, str(path), "exec")
        assert f"inputs({batch}, 0" in text
        assert "model(*args, **kwargs), fullgraph=True, dynamic=False)" in text
    service = read_run(Path("o")).service or {}
    assert service["options"] == {
        "model": name, "modes": "eager,inference_mode,compiled", "batch_sizes": "1,4",
    }  # fmt: skip


def test_a_program_is_of_the_size_of_the_headline(name: str, tmp_path: Path) -> None:
    plan = make_plan("quick", 1, ["eager", "compiled"], [1]).of_calls({(1, "128"): 4, (1, "512"): 4})
    write_programs(Path("best.py"), make_results(tmp_path / "o", plan=plan), name)
    text = Path("best.py").read_text()
    assert "size = next(one for one in built.sizes if str(one) == '128')" in text
    assert text.startswith(f'"""{name} in the mode compiled, size 128: ')


def test_a_program_has_the_time_that_was_reported_and_the_breaks_that_the_compiler_met(
    name: str, tmp_path: Path
) -> None:
    folder = make_module(tmp_path / "o")
    edit_run(folder, lambda one: one.mode("compiled").update(graph_breaks=1, reason="breaks the graph"))
    write_programs(Path("best.py"), folder, name)
    text = Path("best-b16.py").read_text()
    assert "model(*args, **kwargs), fullgraph=False, dynamic=False)" in text
    assert "torch.set_num_threads(1)" in text
    reported = float(text.rpartition('print("')[2].split(" ms was reported")[0])
    assert reported == pytest.approx(1e3 * 0.02 * 16 * 0.4, rel=0.03)
