"""Parity of a user's module: what a mode returns beside eager, and whether eager returns the same twice."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from models.workload import UserModule, explain
from service.records import Attention, Parity, Phase
from service.step.buffers import ModuleArguments
from service.step.callables import AnyStep
from service.step.device import is_device_lost, is_out_of_memory
from service.step.loaded_model import Precision
from service.step.module_inputs import OTHER_SEEDS, ModuleInputs, ShapeInputs
from service.step.module_step import PLAIN, leaves
from service.step.parity import OUT_OF_PARITY, Unservable, worst

OUTPUT = "output"
"""What a module returns is called so."""


def relative_tolerance(dtype: torch.dtype, products: int) -> float:
    """Largest difference that rounding can cause, relative to the largest magnitude of a tensor: see
    `parity.tolerance`. A dtype of 16 bits rounds once behind each of `products` layers that multiply.
    """
    unit = torch.finfo(dtype).eps / 2
    if dtype.itemsize < 4:
        return unit * math.sqrt(max(1, products))
    return 1e-5 if unit > 1e-10 else 1e-12


@dataclass(frozen=True, slots=True)
class Tolerances:
    """Of a module whose weights have `dtypes`; `given` by its author in place of that."""

    dtypes: frozenset[torch.dtype]
    products: int
    given: float | None

    @classmethod
    def of(cls, user: UserModule, precision: Precision) -> Tolerances:
        weights = {tensor.dtype for tensor in user.module.parameters() if tensor.is_floating_point()}
        products = [
            part
            for part in user.module.modules()
            if any(weight.dim() > 1 for weight in part.parameters(recurse=False))
        ]
        cast = {precision.autocast} if precision.autocast is not None else set()
        return cls(frozenset(weights | cast), len(products), user.tolerance)

    def relative(self, output: Tensor) -> float:
        """That of the coarsest dtype on the way to `output`, which may be cast to a finer one."""
        if self.given is not None:
            return self.given
        return max(relative_tolerance(dtype, self.products) for dtype in (*self.dtypes, output.dtype))


class ModuleParityCheck:
    """Compares what a mode returns with what eager does, on the inputs of each batch size.

    Raises Unservable, with the remedy, where eager does not run, or does not return the same for the same.
    """

    attention: tuple[Attention, ...] = ()

    def __init__(
        self, user: UserModule, inputs: Mapping[int, ModuleInputs], eager: AnyStep, precision: Precision
    ) -> None:
        self._inputs = [
            (f"batch {batch}" if size is None else f"batch {batch} of size {size}", batch, own)
            for batch, every in inputs.items()
            for size, own in every.by_size.items()
        ]
        self._tolerances = Tolerances.of(user, precision)
        self._wrong: str | None = None
        self._reference: list[list[tuple[str, Any]]] = []
        for at, _, own in self._inputs:
            try:
                self._reference.append(self._repeated(user, own, eager, at))
            except Unservable:
                raise
            except Exception as error:
                if is_device_lost(error):
                    raise
                raise Unservable(_unservable(user.name, at, error)) from error

    def _repeated(
        self, user: UserModule, inputs: ShapeInputs, eager: AnyStep, at: str
    ) -> list[tuple[str, Any]]:
        """What eager returns, twice alike; clones, by name."""
        inputs.prepare()
        before = {name: tensor.clone() for name, tensor in inputs.tensors()}
        first = _cloned(_called(eager, inputs))
        _refuse_unknown(user.name, first)
        # From the second call on: the first may fill what is computed once and kept.
        buffers = {name: tensor.detach().clone() for name, tensor in user.module.named_buffers()}
        second = _called(eager, inputs)
        for name, tensor in user.module.named_buffers():
            if name not in buffers or not _same(buffers[name], tensor.detach()):
                raise Unservable(
                    f"{user.name} changes its buffer {name} at each call, so that no two calls are alike: "
                    "pass what changes as an input, or turn off what updates it"
                )
        for name, tensor in inputs.tensors():
            if not _same(before[name], tensor):
                raise Unservable(
                    f"{user.name} changes {name}, which it is called on: clone it in forward before that"
                )
        verdict, wrong = compare_trees(first, second, self._tolerances)
        if not verdict.passed:
            raise Unservable(
                f"{user.name} is not deterministic, so that modes cannot be compared: two calls of eager at "
                f"{at} on the same inputs differ ({wrong}). {_random(user.module)}: turn it off, or "
                "pass the random numbers as an input"
            )
        self._refuse_kept(user, inputs, eager)
        return first

    def _refuse_kept(self, user: UserModule, inputs: ShapeInputs, eager: AnyStep) -> None:
        """Raise Unservable where eager answers other values in the same tensors with what it has kept."""
        inputs.fill(inputs.of_seed(OTHER_SEEDS[0]), OTHER_SEEDS[0])
        again = _cloned(list(leaves(eager(*inputs.arguments), OUTPUT)))
        found = list(leaves(eager(*inputs.cloned()), OUTPUT))
        verdict, wrong = compare_trees(found, again, self._tolerances)
        if not verdict.passed:
            raise Unservable(
                f"{user.name} keeps what it has computed of a tensor, and returns it for other values in the "
                f"same tensor ({wrong}): a call would be timed that computes nothing. Turn the cache off"
            )

    def run(self, steps: Mapping[tuple[Phase, int], AnyStep]) -> Parity:
        """The verdict on `steps`, by phase and batch size, over all batch sizes."""
        verdicts = []
        self._wrong = None
        for reference, (at, batch, own) in zip(self._reference, self._inputs, strict=True):
            found = _called(steps["forward", batch], own)
            verdict, wrong = compare_trees(reference, found, self._tolerances)
            verdicts.append(verdict)
            if wrong is not None and self._wrong is None:
                self._wrong = f"out of parity with eager at {at}: {wrong}"
        return worst(verdicts)

    def wrong(self, verdict: Parity) -> str | None:
        """Why a mode of that newest verdict is not to be served; None where it is."""
        return None if verdict.passed else self._wrong or OUT_OF_PARITY


@dataclass(frozen=True, slots=True)
class CallParity:
    """Compares what a call returned with what a call of `eager` on the same arguments returns."""

    eager: AnyStep
    tolerances: Tolerances

    @classmethod
    def of(cls, eager: AnyStep, user: UserModule, precision: Precision) -> CallParity:
        return cls(eager, Tolerances.of(user, precision))

    def of_call(self, output: Any, arguments: ModuleArguments) -> Parity:  # noqa: ANN401 - any tree
        """Calls eager once."""
        found = _cloned(list(leaves(output, OUTPUT)))
        expected = list(leaves(self.eager(*arguments), OUTPUT))
        return compare_trees(expected, found, self.tolerances)[0]


def _called(step: AnyStep, inputs: ShapeInputs) -> list[tuple[str, Any]]:
    inputs.prepare()
    return list(leaves(step(*inputs.arguments), OUTPUT))


def _cloned(found: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return [(name, leaf.detach().clone() if isinstance(leaf, Tensor) else leaf) for name, leaf in found]


def _refuse_unknown(name: str, found: list[tuple[str, Any]]) -> None:
    for path, leaf in found:
        if not isinstance(leaf, (Tensor, *PLAIN)):
            raise Unservable(
                f"{name} returns {path} of type {type(leaf).__name__}, which cannot be compared: return "
                "tensors, or tuples, dicts and dataclasses of them (with transformers: use_cache=False)"
            )
    if all(leaf is None for _, leaf in found):
        raise Unservable(f"{name} returns nothing: return what it computes")


def _unservable(name: str, at: str, error: Exception) -> str:
    if is_out_of_memory(error):
        return (
            f"{name} at {at} needs more memory than there is ({error}): set LAUNCHBOUND_BATCH_SIZES to less"
        )
    return f"{name} cannot be called at {at} in eager: {explain(error)}"


def _random(module: nn.Module) -> str:
    """What may be random in it."""
    training = [name or "the module itself" for name, part in module.named_modules() if part.training]
    if training:
        return f"Dropout is left on: {', '.join(training[:3])} is in training mode"
    return (
        "Is dropout left on (F.dropout without training=self.training), or a random number drawn in forward"
    )


def compare_trees(
    expected: list[tuple[str, Any]], found: list[tuple[str, Any]], tolerances: Tolerances
) -> tuple[Parity, str | None]:
    """Compare two results by name: floats within the tolerance, all else exactly, NaN equal to NaN. The
    verdict, with the largest difference beside its own tolerance; and why it did not pass.
    """
    names, own = [name for name, _ in expected], [name for name, _ in found]
    if names != own:
        unlike = sorted({*names} ^ {*own}) or names
        return _verdict(math.inf, 0.0, 0, 0), f"it returns another structure than eager, first at {unlike[0]}"
    largest, limit, compared, differing = 0.0, 0.0, 0, 0
    worst_ratio = -1.0
    wrong: str | None = None
    for (name, one), (_, other) in zip(expected, found, strict=True):
        if not isinstance(one, Tensor) or not isinstance(other, Tensor):
            unequal = not _same_value(one, other)
            differing += unequal
            compared += 1
            wrong = wrong or (f"{name} is {other!r} in place of {one!r}"[:200] if unequal else None)
            continue
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return _verdict(math.inf, 0.0, 0, 0), (
                f"{name} is {other.dtype} {list(other.shape)} in place of {one.dtype} {list(one.shape)}"
            )
        compared += one.numel()
        if not (one.is_floating_point() or one.is_complex()):
            count = int((_dense(one) != _dense(other)).sum())
            differing += count
            wrong = wrong or (f"{count} of {one.numel()} values of {name} differ" if count else None)
            continue
        difference, allowed = _difference(one, other, tolerances.relative(one))
        if not difference <= allowed and wrong is None:
            wrong = f"{name} differs by {difference:.1e}, {allowed:.1e} allowed"
        ratio = difference / allowed if allowed else math.inf if difference else 0.0
        if ratio > worst_ratio:
            worst_ratio, largest, limit = ratio, difference, allowed
    return _verdict(largest, limit, compared, differing), wrong


def _verdict(difference: float, limit: float, compared: int, differing: int) -> Parity:
    return Parity(
        passed=difference <= limit and differing == 0,
        max_abs_logit_difference=difference,
        tolerance=limit,
        positions=compared,
        differing_tokens=differing,
        near_ties=0,
    )


FILL = 1000.0


def _difference(expected: Tensor, found: Tensor, relative: float) -> tuple[float, float]:
    """The largest difference, infinite for a NaN or an infinity of one alone; and the largest allowed.

    Values that are equal in both, and FILL times as large as any that differs, are what something was masked
    with, such as -1e9, and no measure of how values round.
    """
    wide = torch.complex128 if expected.is_complex() else torch.float64
    one, other = _dense(expected).to(wide), _dense(found).to(wide)
    if not one.numel():
        return 0.0, 0.0
    alike = (one == other) | (one.isnan() & other.isnan())
    difference = (one - other).abs().masked_fill(alike, 0.0).nan_to_num(nan=math.inf, posinf=math.inf)
    magnitude = one.abs().nan_to_num(nan=0.0, posinf=0.0)
    computed = float(magnitude.masked_fill(alike, 0.0).max())
    masked = alike & (magnitude > FILL * computed) if computed else torch.zeros_like(alike)
    return float(difference.max()), relative * float(magnitude.masked_fill(masked, 0.0).max())


def _dense(tensor: Tensor) -> Tensor:
    return tensor.to_dense() if tensor.layout is not torch.strided else tensor


def _same(one: Tensor, other: Tensor) -> bool:
    """Bit for bit, but for the kinds of NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    one, other = _dense(one), _dense(other)
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _same_value(one: object, other: object) -> bool:
    return type(one) is type(other) and (one == other or (one != one and other != other))
