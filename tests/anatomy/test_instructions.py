"""The study of instructions: whose they are, what is counted, and where none can be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from service.anatomy import instructions as study
from service.anatomy.common import StudyError
from service.measure.cases import FEW_WORDS, Bench
from service.measure.cpu_sampler import Place
from service.measure.single_step import Instructions, SingleStepError
from tests.anatomy.conftest import printed
from tests.support.small_models import quiet

TORCH = "/x/libtorch_cpu.so"
BINDINGS = "/x/libtorch_python.so"
PARTS = {
    Place("host", "torch::autograd::Node::~Node()", TORCH): "autograd",
    Place("host", "_PyEval_EvalFrameDefault", "/usr/lib/libpython3.11.so.1.0"): "Python",
    Place("host", "_PyEval_EvalFrameDefault", "/usr/bin/python3.11"): "Python",
    Place("host", "torch::dynamo::(anonymous namespace)::GuardManager::check", BINDINGS): (
        "Dynamo's guards and frames"
    ),
    Place("host", "THPVariable_add", BINDINGS): "torch's Python bindings",
    Place("host", "c10::Dispatcher::call", TORCH): "dispatcher and operators",
    Place("host", "__libc_malloc", "/x/libc.so.6"): "C and C++ libraries: allocator, locks",
    Place("host", "call", "/cache/cabc.main.so"): "generated code",
    Place("host", "[unknown]", ""): "elsewhere",
    Place("kernel", "mkl_blas_def_xsgemv", TORCH): "matrix products",
}
COUNTS = Counter({function: number for number, function in enumerate(PARTS, 1)})


class MadeUpCounter:
    """Finds a few instructions of each of PARTS in any step."""

    def __init__(self, folder: Path) -> None:
        """Nothing is built."""

    def count_settled(self, run: Callable[[], object]) -> Instructions:
        return Instructions(COUNTS)


def made_up_bench() -> Any:
    return SimpleNamespace(
        device=torch.device("cpu"),
        modes=["eager"],
        buffers={1: None, 2: None},
        model=SimpleNamespace(config=SimpleNamespace(layers=2)),
        settings=SimpleNamespace(cache_folder="cache"),
        shallow_case=lambda mode, bucket, phase, layers: SimpleNamespace(call=None),
    )


@pytest.fixture(autouse=True)
def made_up_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(study, "InstructionCounter", MadeUpCounter)


def test_every_instruction_is_of_one_part_of_the_stack_and_shown() -> None:
    finding = study.count_instructions(made_up_bench(), study.InstructionsArguments(mode="eager"), quiet)
    (step,) = finding.steps
    expected: Counter[tuple[str, str]] = Counter()
    for function, count in COUNTS.items():
        expected[function.side, PARTS[function]] += count
    assert {(one.side, one.part): one.instructions for one in step.parts} == expected
    assert step.host + step.kernel == COUNTS.total()
    counts = [function.instructions for function in step.functions]
    assert counts == sorted(counts, reverse=True)
    text = printed(study.show, finding, width=160)
    for word in ("1 of 2 layers", "÷ eager", "[unknown]", *PARTS.values()):
        assert word in text


def test_a_shallow_step_has_so_many_layers_few_words_and_is_made_once(bench: Bench) -> None:
    case = bench.shallow_case("eager", 2, "decode", 1)
    assert bench.shallow_case("eager", 2, "decode", 1) is case
    assert case.buffers.bucket == 2
    logits, tokens = case.call()
    assert logits.shape == (2, min(FEW_WORDS, bench.model.config.vocabulary))
    assert tokens.shape == (2,)
    assert len(case.buffers.arguments("decode")[-1]) == 1  # the caches of one layer
    assert bench.shallow_case("eager", 1, "decode", 2) is bench.case("eager", 1, "decode")  # all of them


def refusing(folder: Path) -> None:
    raise SingleStepError("this needs a C++ compiler")


def few_layers_only(mode: str, bucket: int, phase: str, layers: int) -> None:
    raise ValueError("only models of launchbound's own have fewer layers: 12 here")


def broken(mode: str, bucket: int, phase: str, layers: int) -> None:
    raise RuntimeError("no compiler")


Change = Callable[[pytest.MonkeyPatch, Any], None]


@pytest.mark.parametrize(
    ("change", "arguments", "type_", "words"),
    [
        (lambda m, b: setattr(b, "device", torch.device("cuda")), {}, "unsupported_here", "timeline"),
        (
            lambda m, b: m.setattr(torch, "get_num_threads", lambda: 4), {}, "unsupported_here",
            "LAUNCHBOUND_THREADS=1",
        ),
        (lambda m, b: m.setattr(study, "InstructionCounter", refusing), {}, "unsupported_here", "compiler"),
        (
            lambda m, b: setattr(b, "shallow_case", few_layers_only), {}, "unsupported_here",
            "12 here: set layers to that",
        ),
        (lambda m, b: setattr(b, "shallow_case", broken), {}, "mode_failed", "RuntimeError: no compiler"),
        (lambda m, b: None, {"mode": "none"}, "unknown_mode", "try one of eager"),
        (lambda m, b: None, {"batch_size": 9}, "invalid_request", "between 1 and 2"),
        (lambda m, b: None, {"layers": 0}, "invalid_request", "at least 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_counted_is_refused_with_the_remedy(
    change: Change, arguments: dict[str, Any], type_: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = made_up_bench()
    change(monkeypatch, bench)
    with pytest.raises(StudyError) as raised:
        study.count_instructions(bench, study.InstructionsArguments(**arguments), quiet)
    assert raised.value.type == type_
    assert words in raised.value.message
