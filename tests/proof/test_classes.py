"""The checks of the classes: which work and steps they look at, and where they cannot count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from service.measure.cpu_sampler import Place
from service.measure.single_step import Instructions, SingleStepError
from service.proof import classes
from service.proof.classes import KINDS
from service.proof.rows import NotMeasurableError, run_check
from service.proof.split import ServedStep
from service.proof.worker import CHECKS
from service.records import SampleCounts
from tests.proof.made_bench import MadeUpBench, MadeUpCase
from tests.proof.samples import LADDER
from tests.support.small_models import quiet

# Injected work


class Units:
    """Work that only says how much of it there is."""

    def __init__(self, units: int) -> None:
        self.units = units

    def __call__(self) -> None:
        """Nothing."""


def test_of_the_work_one_arm_has_a_short_piece_inside_and_the_rest_beside_and_the_other_all_inside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = set()

    def sample(
        sampler: object, case: MadeUpCase, slot: classes.Slot, inside: Units, beside: Units | None
    ) -> classes.Injected:
        assert case.injected is slot
        seen.add((case.named.mode, inside.units, beside.units if beside else 0))
        kernel = 1000 * (inside.units + 10)
        return classes.Injected(
            SampleCounts(kernel=kernel, host=5000), (kernel + 5000) / 1e6, inside.units / 1e3
        )

    monkeypatch.setattr(classes, "step_sample", sample)
    monkeypatch.setattr(classes, "KINDS", (classes.Kind("a", "kernel", lambda units, fuse: Units(units)),))
    rows = run_check("x", CHECKS["injected"], MadeUpBench(), quiet)
    assert seen == {
        (mode, inside, beside)
        for mode in classes.INTO
        for inside, beside in ((classes.SHORT, classes.LONG - classes.SHORT), (classes.LONG, 0))
    }
    assert [(row.verdict, row.value) for row in rows] == [("pass", pytest.approx(1.0))] * len(classes.INTO)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_each_kind_of_work_runs_and_is_fused_where_its_mode_would(kind: classes.Kind) -> None:
    fused: list[Callable[..., Any]] = []

    def fuse(function: Callable[..., Any]) -> Callable[..., Any]:
        fused.append(function)
        return function

    kind.work(1, fuse)()
    assert bool(fused) == (kind.name in ("layer norm", "element-wise chain"))


# Instructions


class MadeUpCounter:
    """Counts as many instructions of the host as a mode's dispatch has nanoseconds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def count_settled(self, run: Callable[[], str]) -> Instructions:
        host = int(LADDER[run()] * 1e9)
        return Instructions(Counter({Place("host", "f", "p"): host, Place("kernel", "k", "t"): 1000}))


class Refusing:
    def __init__(self, folder: Path) -> None:
        raise SingleStepError("no compiler here")


class ShallowBench(MadeUpBench):
    """With shallow steps."""

    def __init__(self) -> None:
        super().__init__(batch_sizes=(4, 1, 16))
        self.built: list[tuple[str, int, int]] = []

    def shallow_case(self, mode: str, bucket: int, phase: str, layers: int) -> SimpleNamespace:
        assert phase == "decode"
        self.built.append((mode, bucket, layers))
        return SimpleNamespace(call=lambda: mode)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(classes, "InstructionCounter", MadeUpCounter)


def test_one_step_of_each_mode_is_counted_on_a_model_of_one_layer() -> None:
    bench = ShallowBench()
    found = classes.measure_instructions(bench, quiet)  # type: ignore[arg-type]
    counted = {(mode, 1): [classes.Counted(1000, int(seconds * 1e9))] for mode, seconds in LADDER.items()}
    assert found == counted | {(mode, 16): counted[mode, 1] for mode in classes.GROWING}
    assert bench.built == [
        *((mode, 1, 1) for mode in LADDER),
        *((mode, 16, 1) for mode in classes.GROWING),
    ]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda v, m: setattr(v, "device", torch.device("cuda")), "on CUDA"),
        (lambda v, m: m.setattr(torch, "get_num_threads", lambda: 2), "serve with one"),
        (lambda v, m: setattr(v, "modes", ["no_grad", "compiled"]), "compares with eager"),
        (lambda v, m: m.setattr(classes, "InstructionCounter", Refusing), "no compiler here"),
    ],
)
def test_where_it_cannot_count_it_says_why(
    change: Callable[[ShallowBench, pytest.MonkeyPatch], None], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = ShallowBench()
    change(bench, monkeypatch)
    with pytest.raises(NotMeasurableError, match=told):
        classes.measure_instructions(bench, quiet)  # type: ignore[arg-type]


# Code of no class

KNOWN = Place("host", "call", "python")
STRANGER = Place("unclassified", "product", "/opt/lib/libnew.so")


def test_the_step_with_the_largest_share_of_unknown_code_is_told_with_its_functions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def places(sampler: object, case: MadeUpCase) -> Counter[Place]:
        return Counter({KNOWN: 200, STRANGER: 4 * (case.named == ("compiled", "prefill", 16))})

    monkeypatch.setattr(classes, "_places", places)
    rows = classes.judge_unclassified(classes.measure_unclassified(MadeUpBench(), quiet))  # type: ignore[arg-type]
    assert [row.verdict for row in rows] == ["pass"] * 3 + ["undecided"]
    assert rows[-1].note == "prefill, batch 16: 20 of 1020, product (20)"


def test_what_the_operating_system_runs_is_no_step_s_code() -> None:
    fault = Place("system", "fault", "[kernel]")
    (row,) = classes.judge_unclassified(
        {ServedStep("eager", "decode", 1): [Counter({KNOWN: 500, fault: 500})]}
    )
    assert (row.verdict, row.note) == ("pass", "decode, batch 1: 0 of 500")
