"""The study of instructions: whose they are, what is counted, and where none can be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.served import Cache
from models.transformer import Transformer
from service.anatomy import instructions as study
from service.anatomy.common import StudyError
from service.anatomy.instructions import (
    InstructionsArguments,
    InstructionsFinding,
    count_instructions,
    part_of,
    show,
)
from service.measure.cases import FEW_WORDS, Bench, Case
from service.measure.cpu_sampler import Place
from service.measure.single_step import InstructionCounter, SingleStepError
from service.modes import MODES
from service.records import Phase
from service.step.callables import build_step
from tests.anatomy.conftest import printed
from tests.support.small_models import quiet


class LesserModel(nn.Module):
    """A few operators of `model`, attention and products among them: a layer runs five times as many."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.config, self.embedding, self.head = model.config, model.embedding, model.head
        self.query = nn.Linear(model.config.width, model.config.width, bias=False)

    def forward(self, tokens: Tensor, positions: Tensor, last: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        """Attend to the whole first cache, as `Served.forward`."""
        query = self.query(self.embedding(tokens.reshape(-1)))
        query = query.view(len(tokens), self.config.kv_heads, -1, self.config.head_width)
        keys, values = (one.transpose(1, 2) for one in cache[0])
        attended = F.scaled_dot_product_attention(query, keys, values)
        logits = self.head(F.silu(attended).reshape(len(tokens), -1))
        return logits, logits.argmax(dim=-1)


def lesser_steps(bench: Bench) -> Callable[[str, int, Phase, int], Case]:
    """In place of the bench's shallow cases."""
    model = LesserModel(cast(Transformer, bench.model))

    def case(mode: str, bucket: int, phase: Phase, layers: int) -> Case:
        return Case(mode, phase, build_step(MODES[mode], model), bench.buffers[bucket])

    return case


@pytest.fixture(scope="module")
def finding(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> InstructionsFinding:
    """Of eager and inference_mode."""
    counter = InstructionCounter(tmp_path_factory.mktemp("library"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "shallow_case", lesser_steps(bench))
        patch.setattr(study, "InstructionCounter", lambda _: counter)
        found = [
            count_instructions(bench, InstructionsArguments(mode=mode), quiet)
            for mode in ("eager", "inference_mode")
        ]
    return msgspec.structs.replace(found[0], steps=[step for each in found for step in each.steps])


@pytest.mark.slow
def test_a_step_has_the_same_kernels_with_and_without_a_tape_and_fewer_instructions_of_autograd(
    finding: InstructionsFinding,
) -> None:
    eager, plain = finding.steps
    assert plain.kernel == pytest.approx(eager.kernel, rel=0.02)
    assert plain.host < eager.host
    taped, untaped = (
        sum(part.instructions for part in step.parts if part.part == "autograd") for step in finding.steps
    )
    assert 0 <= untaped < taped / 2


@pytest.mark.slow
def test_parts_and_sides_account_for_every_instruction_and_are_shown(finding: InstructionsFinding) -> None:
    for step in finding.steps:
        for side, total in (("host", step.host), ("kernel", step.kernel)):
            assert sum(part.instructions for part in step.parts if part.side == side) == total
        assert "elsewhere" not in {part.part for part in step.parts}
        counts = [function.instructions for function in step.functions]
        assert counts == sorted(counts, reverse=True)
    text = printed(show, finding, width=160)
    for word in ("1 of 2 layers", "÷ eager", "inference_mode", "autograd", "matrix products", "_PyEval"):
        assert word in text
    if any(function.symbol == "[unknown]" for function in finding.steps[0].functions[:15]):
        assert "[unknown]" in text


@pytest.mark.parametrize(
    ("function", "part"),
    [
        (Place("host", "torch::autograd::Node::~Node()", "/x/libtorch_cpu.so"), "autograd"),
        (Place("host", "_PyEval_EvalFrameDefault", "/usr/lib/libpython3.11.so.1.0"), "Python"),
        (Place("host", "_PyEval_EvalFrameDefault", "/usr/bin/python3.11"), "Python"),
        (
            Place(
                "host", "torch::dynamo::(anonymous namespace)::GuardManager::check", "/x/libtorch_python.so"
            ),
            "Dynamo's guards and frames",
        ),
        (Place("host", "THPVariable_add", "/x/libtorch_python.so"), "torch's Python bindings"),
        (Place("host", "c10::Dispatcher::call", "/x/libtorch_cpu.so"), "dispatcher and operators"),
        (Place("host", "__libc_malloc", "/x/libc.so.6"), "C and C++ libraries: allocator, locks"),
        (Place("host", "call", "/cache/cabc.main.so"), "generated code"),
        (Place("host", "[unknown]", ""), "elsewhere"),
        (Place("kernel", "mkl_blas_def_xsgemv", "/x/libtorch_cpu.so"), "matrix products"),
    ],
)
def test_a_function_belongs_to_the_part_of_the_stack_that_it_is_of(function: Place, part: str) -> None:
    assert part_of(function) == part


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
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(study, "InstructionCounter", lambda folder: None)
    bench = SimpleNamespace(
        device=torch.device("cpu"),
        modes=["eager"],
        buffers={1: None, 2: None},
        model=SimpleNamespace(config=SimpleNamespace(layers=2)),
        settings=SimpleNamespace(cache_folder="cache"),
    )
    change(monkeypatch, bench)
    with pytest.raises(StudyError) as raised:
        count_instructions(cast(Bench, bench), InstructionsArguments(**arguments), quiet)
    assert raised.value.type == type_
    assert words in raised.value.message
