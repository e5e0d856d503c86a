"""Each probe shows its pitfall, names the line, and restores the process's state."""

from __future__ import annotations

import gc
import linecache
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch._dynamo import config, eval_frame
from torch._dynamo.utils import counters, graph_break_reasons

from service.anatomy.common import Report
from service.anatomy.probes import faults
from service.anatomy.probes import study as probes
from service.anatomy.probes.probed import Probed, make_probed
from service.anatomy.probes.study import TABLE, ProbeFinding, ProbesArguments, run_probe, verdict_of
from service.measure.cases import Bench
from service.statistics.intervals import Interval
from service.study_names import PROBES
from tests.support.small_models import quiet

pytestmark = pytest.mark.compiles

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Seen:
    """A probe's finding, and the process before and after it."""

    finding: ProbeFinding
    before: dict[str, Any]
    after: dict[str, Any]


def state() -> dict[str, Any]:
    """Everything of the process that a probe may change."""
    gc.collect()
    return {
        "threads": torch.get_num_threads(),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "default dtype": torch.get_default_dtype(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "config": config.get_config_copy(),
        "stance": eval_frame._stance,
        "counters": {name: dict(counter) for name, counter in counters.items()},
        "breaks": len(graph_break_reasons),
        "logging": logging.root.manager.disable,
        "profile function": sys.getprofile(),
        "float32 precision": torch.get_float32_matmul_precision(),
        "tensor bytes": tensor_bytes(),
        "random state": torch.get_rng_state().tolist(),
    }


def tensor_bytes() -> int:
    """Of large storages that Python still holds; what torch caches for itself is small."""
    gc.collect()  # what other tests have left in circles
    storages = {
        value.untyped_storage().data_ptr(): value.untyped_storage().nbytes()
        for value in gc.get_objects()
        if type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided
    }
    return sum(size for size in storages.values() if size >= 4096)


@pytest.fixture(scope="module", autouse=True)
def no_code_generated() -> Iterator[None]:
    """What the probes count is Dynamo's; tests/end_to_end/test_anatomy.py runs some with Inductor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(faults.compiled, "__defaults__", ("eager",))
        yield


@pytest.fixture(scope="module")
def seen(bench: Bench) -> Callable[[str], Seen]:
    """Runs a probe at its first use."""
    results: dict[str, Seen] = {}

    def result_of(name: str) -> Seen:
        if name not in results:
            before = state()
            finding = run_probe(bench, ProbesArguments(name=name, repeats=9), quiet)
            results[name] = Seen(finding, before, state())
        return results[name]

    return result_of


def test_the_table_has_the_probes_that_the_front_lists() -> None:
    assert list(TABLE) == list(PROBES)


@pytest.mark.parametrize("name", TABLE)
def test_a_probe_answers_moves_its_counter_blames_its_line_and_restores_the_process(
    name: str, seen: Callable[[str], Seen]
) -> None:
    found = seen(name)
    answer = msgspec.json.decode(msgspec.json.encode(found.finding))
    assert answer["name"] == name
    assert answer["cure"]
    for side in (answer["without"], answer["with"]):
        assert 0 < side["low"] <= side["median_seconds"] <= side["high"]
    assert answer["counter"].keys() == {"name", "before", "after"}
    assert answer["ratio"].keys() == {"value", "low", "high", "samples"}
    assert answer["counter"]["after"] > answer["counter"]["before"] >= 0
    file, _, number = answer["blame"].partition(":")
    assert linecache.getline(str(ROOT / file), int(number)).rstrip().endswith(faults.FAULT)
    assert found.after == found.before


def test_a_probe_leaves_weights_and_steps_as_they_were(bench: Bench) -> None:
    weights = {name: value.clone() for name, value in bench.model.state_dict().items()}
    case = bench.case("inference_mode", 1)
    expected, _ = case.call()
    for name in ("hidden-copy", "autocast"):
        run_probe(bench, ProbesArguments(name=name, repeats=6), quiet)
    assert torch.equal(case.call()[0], expected)
    assert len(bench.model.state_dict()) == len(weights)
    assert all(torch.equal(bench.model.state_dict()[name], value) for name, value in weights.items())
    assert {value.data_ptr() for value in bench.model.parameters()} == {
        value.data_ptr() for value in make_probed(bench, 1, "decode").copy().parameters()
    }


def test_a_probe_that_fails_restores_the_process(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(probed: Probed, report: Report) -> faults.FaultComparison:
        torch.set_num_threads(torch.get_num_threads() + 1)
        counters["stats"]["unique_graphs"] += 1
        raise RuntimeError("on purpose")

    monkeypatch.setitem(probes.TABLE, "graph-break", replace(TABLE["graph-break"], run=fail))
    before = state()
    with pytest.raises(RuntimeError, match="on purpose"):
        run_probe(bench, ProbesArguments(name="graph-break"), quiet)
    assert state() == before


def test_a_verdict_other_than_none_needs_an_interval_that_excludes_one() -> None:
    assert verdict_of(Interval(1.2, 0.9, 1.5, 9)) == "no detectable difference"
    assert verdict_of(Interval(1.004, 1.001, 1.008, 9)) == "no detectable difference"
    assert verdict_of(Interval(1.2, 1.1, 1.5, 9)) == "slower"
    assert verdict_of(Interval(0.8, 0.7, 0.9, 9)) == "faster"


def test_the_committed_page_has_every_probe_with_its_cure() -> None:
    page = (ROOT / "docs" / "probes.md").read_text(encoding="utf-8")
    sections = dict(part.split("\n", 1) for part in page.split("\n## ")[1:])
    assert list(sections) == list(PROBES)
    for name, text in sections.items():
        assert PROBES[name][1:] in text
        assert f"cure: {TABLE[name].cure}" in text


def test_a_counter_counts_what_the_fault_costs(seen: Callable[[str], Seen]) -> None:
    finding = seen("recompile").finding
    assert (finding.counter.before, finding.counter.after) == (0, 1)
    assert any("The guard that failed" in line for line in finding.notes)
