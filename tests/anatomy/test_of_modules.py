"""The studies of a user's module: of its call, in eager and compiled, and what is refused of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch._dynamo import config as dynamo_config
from typer.testing import CliRunner

from launchbound import app
from service.anatomy import budget, common, memory, process, timeline
from service.anatomy.common import StudyError
from service.anatomy.operators import study as operators
from service.anatomy.operators.compiled import graph_calls
from service.measure.cases import ModuleBench, open_bench
from service.records import EngineSettings
from service.study_names import OF_MODULES
from tests.anatomy.conftest import CallLister, printed
from tests.anatomy.test_operators import listed
from tests.support.small_models import quiet

pytestmark = pytest.mark.compiles

ROOT = Path(__file__).parents[2]
ODD = "tests/support/user_modules/odd.py"
MODES = ["eager", "inference_mode", "compiled"]
BATCHES = [1, 3]


def opened(module: str, folder: Path, batch_sizes: list[int]) -> ModuleBench:
    settings = EngineSettings(
        address="", model=f"{ROOT}/{ODD}:build_{module}", device="cpu", modes=MODES,
        batch_sizes=batch_sizes, threads=1, cache_folder=str(folder),
    )  # fmt: skip
    bench = open_bench(settings)
    assert isinstance(bench, ModuleBench)
    return bench


@pytest.fixture(scope="module", autouse=True)
def as_before() -> Iterator[None]:
    """What loading a module sets of torch is as it was, when the tests of this file have run."""
    threads = torch.get_num_threads()
    with dynamo_config.patch(
        recompile_limit=dynamo_config.recompile_limit,
        accumulated_recompile_limit=dynamo_config.accumulated_recompile_limit,
    ):
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def nested(common_cache: Path) -> ModuleBench:
    """Of a module that is called with names and returns a tree."""
    return opened("nested", common_cache, BATCHES)


@pytest.fixture(scope="module")
def breaking(common_cache: Path) -> ModuleBench:
    """Of a module that no single graph holds, in more batch sizes than torch compiles one function for."""
    return opened("branching", common_cache, [*range(2, 12)])


def line_of(text: str) -> int:
    lines = (ROOT / ODD).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def found_of(bench: ModuleBench, mode: str, batch_size: int) -> operators.OperatorsFinding:
    arguments = operators.OperatorsArguments(mode=mode, batch_size=batch_size)
    return operators.list_operators(bench, arguments, quiet)


@pytest.mark.parametrize("mode", MODES)
def test_operators_are_those_that_an_independent_dispatch_mode_sees_with_the_users_lines(
    nested: ModuleBench, mode: str
) -> None:
    found = found_of(nested, mode, 3)
    case = nested.case(mode, 3)
    with CallLister() as lister:
        case.call()
    assert lister.names
    assert listed(f"{row.name}.{row.overload}" for row in found.operators) == lister.names
    assert (found.phase, found.batch_size, found.batch_bucket) == ("forward", 3, 3)
    files = {(row.line or "").partition(":")[0] for row in found.operators}
    detach = {"service/step/module_step.py"} if mode == "eager" else set()  # which frees the tape
    assert files == {"generated code" if mode == "compiled" else "user_modules/odd.py"} | detach
    assert found.operators[-1].shapes
    first = next(row for row in found.operators if row.name == "aten::addmm")
    assert first.shapes[1] == [3, 8]
    keys = {key for row in found.operators for key in row.keys or []}
    assert ("AutogradCPU" in keys) == (mode == "eager")
    assert found.dispatch_seconds is not None
    assert found.kernel_seconds is not None
    parts = found.dispatch_seconds.value + found.kernel_seconds.value
    assert parts == pytest.approx(found.step_seconds.median_seconds)
    assert "forward" in printed(found)


def test_a_compiled_module_is_one_graph_with_its_guards_kernels_and_code(nested: ModuleBench) -> None:
    found = found_of(nested, "compiled", 3)
    assert (found.graphs, found.graph_break_count, found.graph_breaks, found.recompiles) == (1, 0, [], 0)
    assert [guard for guard in found.guards or [] if guard.kind == "TENSOR_MATCH"]
    assert "aten::addmm" in [kernel.name for kernel in found.fused_kernels or []]
    assert "def call(" in (found.generated_code or "")
    assert found.wrapper is not None


def test_a_module_that_breaks_is_compiled_with_breaks_and_the_line_is_named(breaking: ModuleBench) -> None:
    found = found_of(breaking, "compiled", 2)
    assert (found.graphs, found.graph_break_count) == (2, 1)
    breaks = found.graph_breaks or []
    assert [one.line for one in breaks] == [f"user_modules/odd.py:{line_of('# branching breaks')}"]
    assert found.wrapper is None  # of one graph alone
    assert [wait.kind for wait in found.syncs] == ["item"]
    note = "compiled breaks the graph: the operators study of it names the lines"
    drawn = timeline.draw_timeline(
        breaking, timeline.TimelineArguments(against="compiled", batch_size=2), quiet
    )
    assert drawn.notes.count(note) == 1
    measured = budget.BudgetArguments(modes=["eager", "compiled"], batch_sizes=[2], rounds=6)
    assert budget.draw_budget(breaking, measured, quiet).notes.count(note) == 1


def test_all_batch_sizes_of_a_module_that_breaks_run_compiled_code(breaking: ModuleBench) -> None:
    """Its own functions are compiled for each, which torch does eight times, and then runs them eagerly."""
    for batch in breaking.inputs:
        case = breaking.case("compiled", batch)
        with graph_calls() as graphs:
            case.call()
        assert len(graphs) == 2, batch


def test_the_inputs_are_the_same_ones_in_every_mode(nested: ModuleBench) -> None:
    for batch in BATCHES:
        cases = [nested.case(mode, batch) for mode in MODES]
        assert {id(case.arguments) for case in cases} == {id(nested.inputs[batch].first.arguments)}
        first, *others = (case.call()["pair"][0].clone() for case in cases)
        for other in others:
            torch.testing.assert_close(other, first, rtol=1e-5, atol=1e-5)
    assert nested.case("eager", 3) is cases[0]
    assert nested.case("eager", 1) is not cases[0]


def test_a_timeline_has_the_call_of_both_modes(nested: ModuleBench, tmp_path: Path) -> None:
    arguments = timeline.TimelineArguments(against="compiled", batch_size=3, out=str(tmp_path))
    found = timeline.draw_timeline(nested, arguments, quiet)
    assert (found.phase, [track.mode for track in found.tracks]) == ("forward", ["eager", "compiled"])
    eager, compiled = found.tracks
    names = [block.name for block in eager.blocks]
    assert "aten::addmm" in names
    assert eager.operators > compiled.operators > 0
    assert all(track.tax is not None for track in found.tracks)
    assert found.speedup is not None
    assert not [note for note in found.notes if "breaks" in note]
    assert (tmp_path / timeline.TRACE_FILE).exists()


def test_a_budget_is_of_every_mode_at_every_batch_that_is_served(nested: ModuleBench) -> None:
    found = budget.draw_budget(nested, budget.BudgetArguments(rounds=6), quiet)
    assert [(one.mode, one.batch_size) for one in found.points] == [
        (mode, batch) for mode in MODES for batch in BATCHES
    ]
    for point in found.points:
        parts = point.dispatch_seconds.value + point.kernel_seconds.value
        assert parts == pytest.approx(point.step.value)
    assert (found.budget.mode, found.budget.batch_size) == ("eager", 1)
    assert found.budget.ops_per_step.value == len(found_of(nested, "eager", 1).operators)
    assert [gain.mode for gain in found.gains] == MODES[1:]


def test_memory_is_the_weights_and_the_inputs_and_what_eagers_tape_saves(nested: ModuleBench) -> None:
    found = memory.read_memory(nested, memory.MemoryArguments(batch_size=3), quiet)
    held = {part.name: part.bytes for part in found.parts}
    assert held == {"parameters": 4 * (8 * 8 + 8), "buffers": 0, "inputs": 4 * 3 * 8 + 8 * 3 * 3}
    saved = {step.mode: step.held.tensors for step in found.steps}
    assert saved["eager"] > 0
    assert saved["inference_mode"] == saved["compiled"] == 0


def test_layers_are_of_torchs_operators_whatever_is_served(nested: ModuleBench) -> None:
    encoded = b'{"operations": ["add"], "sizes": [8], "rounds": 6}'
    found: Any = process.run(nested, "layers", encoded, quiet)
    assert [one.operation for one in found.operations] == ["add"]


@pytest.mark.parametrize(
    ("name", "arguments", "param", "words"),
    [
        ("tape", {}, "study", "of a module try one of operators, timeline, budget"),
        ("rms-norm", {}, "study", "rms-norm is a study of language models"),
        ("operators", {"batch_size": 2}, "batch_size", "is one of 1, 3 here, got 2"),
        ("operators", {"phase": "decode"}, "phase", "no phase 'decode' here; try one of forward"),
        ("timeline", {"phase": "prefill"}, "phase", "try one of forward"),
        ("budget", {"batch_sizes": [5]}, "batch_size", "is one of 1, 3 here, got 5"),
        ("operators", {"mode": "cuda-graph"}, "mode", "try one of eager"),
    ],
)
def test_what_a_module_has_not_is_refused_with_what_there_is(
    nested: ModuleBench, name: str, arguments: dict[str, Any], param: str, words: str
) -> None:
    with pytest.raises(StudyError, match=words) as refused:
        process.run(nested, name, msgspec.json.encode(arguments), quiet)
    assert refused.value.param == param


def test_every_study_of_modules_is_one() -> None:
    assert {*OF_MODULES} < process.STUDIES.keys()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["anatomy", "--tape"], "tape is a study of language models: of a module try one of operators"),
        (["anatomy", "--rms-norm"], "rms-norm is a study of language models"),
        (["probe", "custom-op"], "this probe replaces an RMS norm, and this model has none"),
        (["anatomy", "--phase", "decode"], "no phase 'decode' here; try one of forward"),
    ],
)
def test_the_command_refuses_in_one_line(
    arguments: list[str], words: str, nested: ModuleBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "prepare_bench", lambda _: nested)
    ended = CliRunner().invoke(app, [*arguments, f"--model={ODD}:build_nested"])
    assert ended.exit_code == 2
    line = ended.stderr.splitlines()[-1]
    assert line.startswith("launchbound: ")
    assert words in line


def test_the_command_measures_a_batch_of_its_own_and_prints_nothing_of_the_modules(
    common_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    code = (ROOT / ODD).read_text() + "\nprint('words of the module')\n"
    (tmp_path / "talking.py").write_text(code)
    monkeypatch.setattr(common, "prepare_process", lambda *_: None)
    monkeypatch.setenv("LAUNCHBOUND_CACHE_FOLDER", str(common_cache))
    options = ["--mode=eager", "--batch-size=2", "--json", f"--model={tmp_path}/talking.py:build_nested"]
    app(["anatomy", *options], standalone_mode=False)
    out, err = capfd.readouterr()
    found: dict[str, Any] = json.loads(out)
    assert (found["mode"], found["batch_size"], found["phase"]) == ("eager", 2, "forward")
    assert "words of the module" in err
