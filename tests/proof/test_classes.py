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
from service.measure.single_step import SingleStepError
from service.proof import classes
from service.proof.classes import KINDS
from service.proof.rows import NotMeasurableError
from service.proof.split import ServedStep
from tests.proof.made_bench import MadeUpBench, MadeUpCase
from tests.support.small_models import quiet


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_each_kind_of_work_runs_and_is_fused_where_its_mode_would(kind: classes.Kind) -> None:
    fused: list[Callable[..., Any]] = []

    def fuse(function: Callable[..., Any]) -> Callable[..., Any]:
        fused.append(function)
        return function

    kind.work(1, fuse)()
    assert bool(fused) == (kind.name in ("layer norm", "element-wise chain"))


# Instructions


class Refusing:
    def __init__(self, folder: Path) -> None:
        raise SingleStepError("no compiler here")


class ShallowBench(MadeUpBench):
    """With shallow steps."""

    def __init__(self) -> None:
        super().__init__(batch_sizes=(4, 1, 16))

    def shallow_case(self, mode: str, bucket: int, phase: str, layers: int) -> SimpleNamespace:
        return SimpleNamespace(call=lambda: mode)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)


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
