"""The check of instructions: which steps are counted, and where it cannot count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from service.measure.cpu_sampler import Place
from service.measure.single_step import Instructions, SingleStepError
from service.proof import classes
from service.proof.classes import GROWING, GROWTH, INSTRUCTIONS, Counted, Step, measure_instructions
from service.proof.rows import NotMeasurableError, run_check
from tests.proof.made_variants import MadeUpVariants
from tests.proof.samples import LADDER


class MadeUpStep(NamedTuple):
    """Says which mode it is of, when called."""

    mode: str

    def call(self) -> str:
        return self.mode


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


class Variants(MadeUpVariants):
    """With shallow steps."""

    def __init__(self, batch_sizes: Sequence[int] = (4, 1, 16)) -> None:
        super().__init__(batch_sizes=batch_sizes)
        self.built: list[tuple[str, int, int]] = []
        self.served_bench = SimpleNamespace(shallow_case=self.shallow_case)

    def shallow_case(self, mode: str, bucket: int, phase: str, layers: int) -> MadeUpStep:
        assert phase == "decode"
        self.built.append((mode, bucket, layers))
        return MadeUpStep(mode)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(classes, "InstructionCounter", MadeUpCounter)


def measured(variants: Variants) -> dict[Step, list[Counted]]:
    return measure_instructions(variants, lambda text: None)  # type: ignore[arg-type]


def test_one_step_of_each_mode_is_counted_on_a_model_of_one_layer() -> None:
    variants = Variants()
    found = measured(variants)
    counted = {(mode, 1): [Counted(1000, int(seconds * 1e9))] for mode, seconds in LADDER.items()}
    assert found == counted | {(mode, 16): counted[mode, 1] for mode in GROWING}
    assert variants.built == [*((mode, 1, 1) for mode in LADDER), *((mode, 16, 1) for mode in GROWING)]


def test_without_compiled_nothing_is_said_of_how_it_grows() -> None:
    variants = Variants()
    variants.modes = ["eager", "no_grad"]
    assert set(measured(variants)) == {("eager", 1), ("no_grad", 1)}


def test_with_one_batch_size_nothing_is_said_of_how_it_grows() -> None:
    rows = run_check("instructions", INSTRUCTIONS, Variants([2]), lambda text: None)
    assert [row.name for row in rows if row.name.startswith(GROWTH.name)] == []


def test_its_rows_pass_for_such_counts() -> None:
    rows = run_check("instructions", INSTRUCTIONS, Variants(), lambda text: None)
    assert {row.verdict for row in rows} == {"pass"}
    assert len(rows) == 7


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
    change: Callable[[Variants, pytest.MonkeyPatch], None], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variants = Variants()
    change(variants, monkeypatch)
    with pytest.raises(NotMeasurableError, match=told):
        measured(variants)
