"""A step on its way down: its graphs, its core ATen form, one dispatch table, and torch's registry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from service.anatomy.common import StudyError
from service.anatomy.operators import lowering as lowered
from service.anatomy.operators.compiled import entries
from service.anatomy.operators.lowering import (
    LINES_KEPT,
    Lowering,
    bounded,
    compare,
    count_registry,
    is_core,
    read_dispatch_table,
    read_lowering,
)
from service.anatomy.operators.show import show_lowering
from service.anatomy.operators.study import OperatorsArguments, list_operators
from service.measure.cases import Bench
from tests.support.anatomy_bench import quiet, small_bench

pytestmark = pytest.mark.compiles

MULTIPLY = "aten::mul.Tensor"


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with small_bench() as shared:
        yield shared


@pytest.fixture(scope="module")
def compiled(bench: Bench) -> Lowering:
    return read_lowering(bench, bench.case("compiled", 1), True, MULTIPLY, quiet)


def test_the_registrys_core_operators_are_those_that_torch_ops_tags() -> None:
    names = ("add", "mm", "linear", "sort", "view", "convolution", "index_put", "native_layer_norm")
    packets = [getattr(torch.ops.aten, name) for name in names]
    overloads = [getattr(packet, name) for packet in packets for name in packet.overloads()]
    tagged = {one.name() for one in overloads if torch.Tag.core in one.tags}
    assert tagged == {one.name() for one in overloads if is_core(one.name())}
    assert 0 < len(tagged) < len(overloads)


def test_the_registry_has_more_overloads_than_operators_and_few_of_them_are_core() -> None:
    found = count_registry()
    assert 0 < found.core_operators <= found.core_overloads < found.overloads
    assert found.core_operators < found.operators < found.overloads


@pytest.mark.parametrize(
    ("name", "core"),
    [("aten::add.Tensor", True), ("aten::mm", True), ("aten::add_.Tensor", False), ("aten::linear", False),
     ("aten::no_such_operator", False)],
)  # fmt: skip
def test_an_overload_is_core_by_its_tag(name: str, core: bool) -> None:
    assert is_core(name) is core


@pytest.mark.parametrize("operator", [MULTIPLY, "aten::mm", "aten::linear", "aten::empty.memory_format"])
def test_a_dispatch_table_has_an_entry_for_every_line_of_torchs_dump(operator: str) -> None:
    found = read_dispatch_table(operator)
    lines = torch._C._dispatch_dump_table(operator).splitlines()
    assert [entry.key for entry in found.entries] == [line.partition(":")[0] for line in lines]
    for entry, line in zip(found.entries, lines, strict=True):
        assert entry.falls_through == ("fallthrough" in line)
        assert entry.place in line
        assert line.endswith(f"[{entry.kind}]")


def test_a_dispatch_table_tells_a_kernel_from_autograds() -> None:
    kinds = {entry.key: entry.kind for entry in read_dispatch_table(MULTIPLY).entries}
    assert (kinds["CPU"], kinds["AutogradCPU"]) == ("kernel", "autograd kernel")


def test_an_unknown_operator_is_refused_with_those_that_are_near() -> None:
    with pytest.raises(StudyError, match=r"did you mean .*aten::mul") as refused:
        read_dispatch_table("aten::mull.Tensor")
    assert refused.value.param == "operator"


def test_in_core_aten_nothing_composite_and_no_write_in_place_is_left(compiled: Lowering) -> None:
    assert compiled.no_decomposition is None
    found = compiled.decomposition
    assert found is not None
    counts = {row.name: row for row in found.operators}
    assert counts["aten::linear"].before > 0 == counts["aten::linear"].after
    assert not [row.name for row in found.operators if row.after and row.name.partition(".")[0].endswith("_")]
    assert sum(row.before for row in found.operators) == found.before
    assert sum(row.after for row in found.operators) == found.after
    assert sum(row.after for row in found.operators if not row.core) == found.not_core


def test_operators_are_compared_by_overload_the_most_frequent_first() -> None:
    found = compare(
        Counter({"aten::linear": 2, "aten::add.Tensor": 1}),
        Counter({"aten::permute": 2, "aten::addmm": 2, "aten::add.Tensor": 1, "custom::op": 3}),
    )
    assert (found.before, found.after, found.distinct_before, found.distinct_after) == (3, 8, 2, 4)
    assert [row.name for row in found.operators][:2] == ["aten::linear", "aten::add.Tensor"]
    assert found.not_core == 3


def test_a_model_that_cannot_be_exported_is_said_to_be_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: object) -> None:
        raise RuntimeError("data-dependent")

    monkeypatch.setattr(lowered, "decompose", fails)
    found = read_lowering(bench, bench.case("eager", 1), False, MULTIPLY, quiet)
    assert found.decomposition is None
    assert "RuntimeError: data-dependent" in str(found.no_decomposition)
    assert found.graphs is None


def test_a_compiled_step_has_dynamos_graph_and_aotautograds(compiled: Lowering) -> None:
    assert compiled.graphs is not None
    assert [graph.stage for graph in compiled.graphs] == ["dynamo", "aot"]
    dynamo, aot = compiled.graphs
    assert "torch._C._nn.linear(" in dynamo.text or "linear(" in dynamo.text
    assert "torch.ops.aten.mm.default(" in aot.text
    assert aot.operations > dynamo.operations > 0


def test_graphs_name_our_files_as_findings_do_and_no_folder_of_this_machine(compiled: Lowering) -> None:
    for graph in compiled.graphs or []:
        assert "File: models/transformer.py:" in graph.text
        assert str(Path(__file__).parents[2]) not in graph.text


def test_a_long_graph_is_cut_and_its_lines_are_counted() -> None:
    found = bounded("aot", 7, "\n".join(f"line {number}" for number in range(LINES_KEPT + 5)))
    assert (found.operations, found.lines) == (7, LINES_KEPT + 5)
    assert found.text.splitlines()[-1] == f"line {LINES_KEPT - 1}"


def test_reading_the_graphs_leaves_the_compiled_entries_as_they_were(bench: Bench) -> None:
    case = bench.case("compiled", 1)
    before = [id(entry) for entry in entries(case.step)]
    assert before
    read_lowering(bench, case, True, MULTIPLY, quiet)
    assert [id(entry) for entry in entries(case.step)] == before


def test_the_study_has_the_lowering_only_where_it_is_asked_for(bench: Bench) -> None:
    found = {
        asked: list_operators(bench, OperatorsArguments(lowering=asked, native=False), quiet).lowering
        for asked in (False, True)
    }
    assert found[False] is None
    assert found[True] is not None
    assert found[True].dispatch_table.operator == MULTIPLY


def test_the_terminal_shows_every_part(compiled: Lowering) -> None:
    out = StringIO()
    show_lowering(compiled, Console(file=out, width=160))
    assert compiled.decomposition is not None
    for word in (
        "Dynamo's graph",
        "AOTAutograd's graph",
        f"become {compiled.decomposition.after}",
        f"dispatch table of {MULTIPLY}",
        f"{compiled.registry.overloads} overloads",
    ):
        assert word in out.getvalue()


def test_the_terminal_gives_the_reason_for_no_decomposition(compiled: Lowering) -> None:
    out = StringIO()
    without: Any = SimpleNamespace(
        graphs=None,
        decomposition=None,
        no_decomposition="not this model",
        dispatch_table=compiled.dispatch_table,
        registry=compiled.registry,
    )
    show_lowering(without, Console(file=out, width=160))
    assert "no core ATen form: not this model" in out.getvalue()
