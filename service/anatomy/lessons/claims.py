"""The claims, as the field's texts quote them, and what each is measured by."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from service.anatomy.lessons import readings
from service.anatomy.lessons.answer import Answer, Quoted, about
from service.anatomy.lessons.decided import autocast_is, autograd_keys_are, sync_costs
from service.anatomy.lessons.findings import Findings

_ANY = math.inf


@dataclass(frozen=True, slots=True)
class Claim:
    """A row of the lessons. `by` is the command that measures it; `answer` reads it from the findings."""

    about: str
    quoted: str
    by: str
    answer: Callable[[Findings], Answer]


_LAYERS = "`launchbound anatomy --layers`"
_OPERATORS = "`launchbound anatomy`"
_LOWERING = "`launchbound anatomy --lowering`"
_BUDGET = "`launchbound anatomy --budget`"
_MEMORY = "`launchbound anatomy --memory`"
_LESSONS = "`launchbound lessons`"


def _layer(name: str, low: float, high: float) -> Callable[[Findings], Answer]:
    quoted = Quoted(low, high, " µs", readings.layer(name), readings.why_no_layer(name))
    return quoted.answer


CLAIMS: tuple[Claim, ...] = (
    Claim("Python per operator", "1–10 µs", f"{_LAYERS}, *python*", _layer("python", 1, 10)),
    Claim("binding", "~1 µs", f"{_LAYERS}, *binding*", _layer("binding", *about(1))),
    Claim("dispatcher per operator", "1–5 µs", f"{_LAYERS}, *dispatcher*", _layer("dispatcher", 1, 5)),
    Claim(
        "dispatch of a whole call", "5–25 µs", f"{_LAYERS}, whole; {_OPERATORS}, dispatch / calls",
        Quoted(5, 25, " µs", readings.whole_call).answer,
    ),
    Claim("autograd", "1–3 µs", f"{_LAYERS}, *autograd*", _layer("autograd", 1, 3)),
    Claim("ATen", "1–2 µs", f"{_LAYERS}, *operator*", _layer("operator", 1, 2)),
    Claim(
        "backend", "1–5 µs", f"{_LAYERS}, *allocator* and *kernel*",
        Quoted(1, 5, " µs", readings.backend).answer,
    ),
    Claim(
        "eager at batch 1 against its kernels", "~5× slower", f"{_BUDGET}, step / kernels",
        Quoted(*about(5), " ×", readings.eager_over_kernels).answer,
    ),
    Claim(
        "`inference_mode` against `no_grad`", "5–15 % faster", f"{_BUDGET}, paired rounds",
        Quoted(5, 15, " %", readings.gain("no_grad", "inference_mode")).answer,
    ),
    Claim(
        "compiling", "30–100 % faster", f"{_BUDGET}, paired rounds",
        Quoted(30, 100, " %", readings.gain_of_compiling).answer,
    ),
    Claim(
        "a layer norm in operators", "5+ kernels", _LESSONS,
        Quoted(5, _ANY, "", readings.norm_by_operator).answer,
    ),
    Claim("the same compiled", "1 kernel", _LESSONS, Quoted(1, 1, "", readings.norm_compiled).answer),
    Claim(
        "a block, eager", "~12 kernels", f"{_OPERATORS} of eager, calls that are no views / layers",
        Quoted(*about(12), "", readings.block_by_operator).answer,
    ),
    Claim(
        "a block, compiled", "2–4 kernels", f"{_OPERATORS} of compiled, kernels / layers",
        Quoted(2, 4, "", readings.block_compiled).answer,
    ),
    Claim(
        "saved tensors against parameters", "4–8×", f"{_MEMORY}, prefill",
        Quoted(4, 8, " ×", readings.saved).answer,
    ),
    Claim("strided access", "5–10× slower", _LESSONS, Quoted(5, 10, " ×", readings.strided).answer),
    Claim(
        "operators of a block", "~50 small ones", f"{_OPERATORS} of eager, calls / layers",
        Quoted(*about(50), "", readings.block_calls).answer,
    ),
    Claim(
        "overloads in the registry", "~2,000", _LOWERING, Quoted(*about(2000), "", readings.overloads).answer
    ),
    Claim("core operators", "~250", _LOWERING, Quoted(*about(250), "", readings.core).answer),
    Claim("autocast (texts disagree)", "above autograd", _LESSONS, autocast_is(above=True)),
    Claim("autocast (texts disagree)", "below autograd", _LESSONS, autocast_is(above=False)),
    Claim(
        "autograd's keys in `inference_mode`", "removed", f"{_OPERATORS} of that mode",
        autograd_keys_are(kept=False, mode="inference_mode"),
    ),
    Claim(
        "autograd's keys in `no_grad` (texts disagree)", "kept", f"{_OPERATORS} of that mode",
        autograd_keys_are(kept=True, mode="no_grad"),
    ),
    Claim(
        "autograd's keys in `no_grad` (texts disagree)", "removed", f"{_OPERATORS} of that mode",
        autograd_keys_are(kept=False, mode="no_grad"),
    ),
    Claim("a launch", "1–3 µs", f"{_LAYERS}, *launch*", _layer("launch", 1, 3)),
    Claim(
        "`cudaMalloc`", "100+ µs", "`launchbound probe fragmentation`",
        Quoted(100, _ANY, " µs", readings.probe_difference("fragmentation"), readings.needs_gpu).answer,
    ),
    Claim(
        "launches of a step", "80–200", f"{_OPERATORS} of eager",
        Quoted(80, 200, "", readings.launches, readings.needs_gpu).answer,
    ),
    Claim("a sync in the step", "costs a wait", "`launchbound probe sync-point`", sync_costs),
)  # fmt: skip
"""In the order of the page: Python and its layers, modes, counts, and what only a GPU can show."""


def answers(findings: Findings) -> Iterator[tuple[Claim, Answer]]:
    """Every claim with its answer."""
    for claim in CLAIMS:
        yield claim, claim.answer(findings)
