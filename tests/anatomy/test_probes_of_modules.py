"""The probes in a user's module: behind its own parts, on its own inputs, and what is refused of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch._dynamo import config as dynamo_config

from service.anatomy.common import StudyError
from service.anatomy.probes import faults
from service.anatomy.probes.probed import make_probed
from service.anatomy.probes.study import TABLE, ProbeFinding, ProbesArguments, run_probe
from service.measure.cases import ModuleBench, open_bench
from service.records import EngineSettings
from tests.anatomy.test_probes import state
from tests.support.small_models import quiet

pytestmark = pytest.mark.compiles

ROOT = Path(__file__).parents[2]
MODULES = "tests/support/user_modules"
RECOMMENDER = "examples/recommender.py:build"


@pytest.fixture(scope="module", autouse=True)
def as_before() -> Iterator[None]:
    """Code of the compiler's own is not generated, and what loading a module sets of torch is as it was."""
    threads = torch.get_num_threads()
    with (
        pytest.MonkeyPatch.context() as patch,
        dynamo_config.patch(
            recompile_limit=dynamo_config.recompile_limit,
            accumulated_recompile_limit=dynamo_config.accumulated_recompile_limit,
        ),
    ):
        patch.setattr(faults.compiled, "__defaults__", ("eager",))
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def opened(common_cache: Path) -> Callable[[str], ModuleBench]:
    """The bench of a module, by its name from the top folder, in batches of 1 and 8."""
    benches: dict[str, ModuleBench] = {}

    def bench(name: str) -> ModuleBench:
        if name not in benches:
            settings = EngineSettings(
                address="", model=f"{ROOT}/{name}", device="cpu", modes=["eager", "compiled"],
                batch_sizes=[1, 8], threads=1, cache_folder=str(common_cache),
            )  # fmt: skip
            made = open_bench(settings)
            assert isinstance(made, ModuleBench)
            benches[name] = made
        return benches[name]

    return bench


def found(bench: ModuleBench, name: str, batch_size: int | None = None) -> ProbeFinding:
    return run_probe(bench, ProbesArguments(name=name, batch_size=batch_size, repeats=6), quiet)


@pytest.mark.parametrize("name", [name for name in TABLE if name != "custom-op"])
def test_a_probe_moves_its_counter_in_a_module_and_restores_the_process(
    name: str, opened: Callable[[str], ModuleBench]
) -> None:
    bench = opened(RECOMMENDER)
    expected = bench.case("eager", 8).call()
    before = state()
    finding = found(bench, name)
    assert state() == before
    assert finding.counter.after > finding.counter.before >= 0
    assert (finding.phase, finding.layers) == ("forward", None)
    assert finding.batch_size == (8 if name in ("hidden-copy", "unbucketed-shape") else 1)
    assert torch.equal(bench.case("eager", 8).call(), expected)


def test_a_probe_takes_a_batch_that_is_served(opened: Callable[[str], ModuleBench]) -> None:
    bench = opened(RECOMMENDER)
    assert found(bench, "sync-point", 8).batch_size == 8
    with pytest.raises(StudyError, match="batch_size is one of 1, 8 here, got 2"):
        found(bench, "sync-point", 2)


def test_a_fault_is_behind_the_outermost_parts_that_return_a_tensor(
    opened: Callable[[str], ModuleBench],
) -> None:
    bench = opened(RECOMMENDER)
    probed = make_probed(bench, 1, "decode")
    parts = {id(part): name for name, part in probed.model.named_modules()}
    names = [parts[id(part)] for part in probed.parts(probed.model)]
    assert names == ["bottom", "tables.0", "tables.1", "tables.2", "tables.3", "top"]
    assert "The fault is behind `bottom`" in found(bench, "graph-break").notes[-1]


def test_the_norm_of_a_module_is_replaced(opened: Callable[[str], ModuleBench]) -> None:
    finding = found(opened(f"{MODULES}/text.py:build_t5"), "custom-op")
    assert (finding.counter.name, finding.counter.before) == ("graph_breaks", 0)
    assert finding.counter.after > 0


def test_a_module_that_breaks_recompiles_where_it_does_and_says_that_it_breaks(
    opened: Callable[[str], ModuleBench],
) -> None:
    breaking = opened(f"{MODULES}/odd.py:build_branching")
    finding = found(breaking, "recompile")
    assert (finding.counter.before, finding.counter.after) == (0, 1)
    notes = found(breaking, "graph-break").notes
    assert [note for note in notes if note.startswith("Without the fault this module has breaks already")]


@pytest.mark.parametrize(
    ("module", "name", "words"),
    [
        ("odd.py:build_recurrent", "graph-break", "compiles nothing of this module"),
        ("odd.py:build_locked", "sync-point", "copy.deepcopy of this module fails: cannot pickle"),
        ("odd.py:build_nested", "custom-op", "this probe replaces an RMS norm"),
        (
            "odd.py:build_plain",
            "sync-point",
            "tensor of two or more dimensions, and none does",
        ),
    ],
)
def test_what_a_module_cannot_show_is_refused_with_the_reason(
    module: str, name: str, words: str, opened: Callable[[str], ModuleBench]
) -> None:
    with pytest.raises(StudyError, match=words) as refused:
        found(opened(f"{MODULES}/{module}"), name)
    assert refused.value.type == "unsupported_here"
