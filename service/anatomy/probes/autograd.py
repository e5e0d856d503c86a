"""Probes of autograd: a saved tensor that is changed in place, and a tensor of inference mode."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from service.anatomy.errors import StudyError
from service.anatomy.probes.blame import line_of, line_that_raised, records
from service.anatomy.probes.comparison import Counter, FaultComparison, TimedStep, median_of
from service.anatomy.probes.memory import copies
from service.anatomy.probes.probed_model import ProbedModel
from service.anatomy.progress import Report

_SCALE = 2.0


def version_counter(probed: ProbedModel, report: Report) -> FaultComparison:
    """The step's probabilities, which softmax saves for its backward pass, scaled in place or not."""
    without = probed.served(_scaling(probed, _scaled), grad_mode="enabled")
    with_fault = probed.served(_scaling(probed, _scaled_in_place), grad_mode="enabled")
    report("running backward with both")
    before, no_failure = _version_and_failure(without)
    after, failure = _version_and_failure(with_fault)
    if failure is None or no_failure is not None:
        found = no_failure or "no error where one was expected"
        raise StudyError("unsupported_here", f"this torch does not check versions as described: {found}")
    return FaultComparison(
        without=TimedStep(without),
        with_fault=TimedStep(with_fault),
        counter=Counter(name="version_of_the_saved_tensor", before=before, after=after),
        blame=line_of("aten::mul_.Tensor", records(probed, with_fault)),
        notes=[
            f"Backward ends with: {failure}",
            "Only the forward step is timed, because with the fault there is no backward to time. Writing in "
            "place saves one new tensor.",
        ],
    )


def _scaling(probed: ProbedModel, scale: Callable[[Tensor], Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    def run(*arguments: object) -> tuple[Tensor, ...]:
        logits, _ = probed.model(*arguments)
        probabilities = logits.softmax(dim=-1)
        return logits, probabilities, scale(probabilities)

    return run


def _scaled(probabilities: Tensor) -> Tensor:
    return probabilities * _SCALE


def _scaled_in_place(probabilities: Tensor) -> Tensor:
    return probabilities.mul_(_SCALE)


def _version_and_failure(run: Callable[[], tuple[Tensor, ...]]) -> tuple[int, str | None]:
    """The version of the saved probabilities after a step, and what its backward pass raises."""
    logits, probabilities, scaled = run()
    version = probabilities._version
    try:
        torch.autograd.grad(scaled[..., 0].sum(), logits)
    except RuntimeError as error:
        return version, str(error).partition(" Hint:")[0]
    return version, None


def inference_tensor_in_autograd(probed: ProbedModel, report: Report) -> FaultComparison:
    """A head trained on the model's logits: of `no_grad` as they are, of inference mode cloned."""
    plain = probed.served(probed.model, grad_mode="no_grad")
    inference = probed.served(probed.model)
    logits = inference()[0]
    weight = torch.ones(1, logits.shape[-1], dtype=logits.dtype, device=logits.device, requires_grad=True)

    def without() -> Tensor:
        return _head(plain()[0], weight)

    def with_fault() -> Tensor:
        return _head(inference()[0].clone(), weight)

    report("giving autograd a tensor of inference mode")
    refusal = _refusal(logits, weight)
    clone = TimedStep(lambda: logits.clone())
    return FaultComparison(
        without=TimedStep(without),
        with_fault=TimedStep(with_fault),
        counter=Counter(
            name="copies_per_step", before=copies(probed, without)[0], after=copies(probed, with_fault)[0]
        ),
        blame=line_that_raised(refusal),
        notes=[
            f"Without the clone: {refusal}",
            f"The clone of {logits.nbytes:,} bytes takes {median_of(clone, probed.bench.synchronise)}.",
            "The ratio also has what inference mode saves: autograd's keys, which `no_grad` pays for.",
        ],
    )


def _head(features: Tensor, weight: Tensor) -> Tensor:
    return functional.linear(features, weight)


def _refusal(features: Tensor, weight: Tensor) -> RuntimeError:
    """The error of a head on `features` of inference mode. Raises StudyError where there is none."""
    try:
        _head(features, weight)
    except RuntimeError as error:
        return error
    raise StudyError("unsupported_here", "this torch saves a tensor of inference mode for backward")
