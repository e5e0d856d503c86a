"""Study of an RMS-norm as a custom operator: what it costs to hide it from the compiler."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from time import perf_counter_ns
from types import FunctionType
from typing import Annotated

import msgspec
import torch
from torch import Tensor
from torch._inductor import metrics
from torch.nn import functional

from service.anatomy.common import Report, StudyError, attached_note
from service.anatomy.layers.variants import State, Variant, time_variants
from service.measure.cases import Bench
from service.measure.rounds import paired_median_ratio
from service.statistics.intervals import Interval, median_interval

Norm = Callable[[Tensor, Tensor, float], Tensor]
Form = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

NAME = "launchbound_anatomy::rms_norm"
EPSILON = 1e-5


class RmsNormArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`rows` of hidden states of the model's width, or of `width`."""

    rows: Annotated[int, msgspec.Meta(ge=1, le=65536)] = 16
    width: Annotated[int, msgspec.Meta(ge=1, le=65536)] | None = None
    rounds: Annotated[int, msgspec.Meta(ge=6, le=500)] = 15


class RmsNormForm(msgspec.Struct, frozen=True, kw_only=True):
    """One form of the norm; `call` in seconds, `kernels` that Inductor generated, None in eager."""

    name: str
    call: Interval
    kernels: int | None


class RmsNormFinding(msgspec.Struct, frozen=True, kw_only=True):
    """The custom operator beside ATen's form, each between an addition and a gate that can be fused with it.

    `opaque_ratio` is the compiled custom form over the compiled ATen form: above 1, hiding the norm costs
    time.
    """

    device: str
    rows: int
    width: int
    dtype: str
    rounds: int
    forms: list[RmsNormForm]
    opaque_ratio: Interval
    notes: list[str] = []


@cache
def rms_norm_operator() -> Norm:
    """The custom operator, registered at the first call and once per process.

    (x [..., width], weight [width], epsilon) → as x. A Triton kernel on CUDA, ATen's on a CPU.
    """

    @torch.library.custom_op(NAME, mutates_args=(), device_types="cpu")
    def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        # Contiguous like the fake; ATen would keep a transposed layout.
        return aten_rms_norm(x, weight, epsilon).contiguous()

    @rms_norm.register_fake
    def _(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        return x.new_empty(x.shape)

    @rms_norm.register_kernel("cuda")
    def _(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        from service.anatomy.rms_norm_triton import launch

        return launch(x, weight, epsilon)

    return rms_norm


def aten_rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """ATen's form, which Inductor can decompose and fuse."""
    return functional.rms_norm(x, weight.shape, weight, epsilon)


def surrounded(norm: Norm) -> Form:
    """`norm` as in a block: after a residual addition, before a gate.

    Each with its own code object, because compiled entries of one code object share a recompile limit.
    """

    def form(x: Tensor, residual: Tensor, weight: Tensor, gate: Tensor) -> Tensor:
        return norm(x + residual, weight, EPSILON) * functional.silu(gate)

    return FunctionType(form.__code__.replace(), form.__globals__, "form", None, form.__closure__)


def compare_rms_norm(bench: Bench, arguments: RmsNormArguments, report: Report) -> RmsNormFinding:
    """Time both forms, eager and compiled. Raises StudyError where one breaks or computes something else."""
    width = arguments.width or bench.model.config.width
    shapes = (arguments.rows, width), (arguments.rows, width), (width,), (arguments.rows, width)
    inputs = tuple(torch.randn(shape, device=bench.device, dtype=bench.precision.weights) for shape in shapes)
    norms = {"ATen": aten_rms_norm, "custom": rms_norm_operator()}
    forms: dict[str, Form] = {f"{name}, eager": surrounded(norm) for name, norm in norms.items()}
    kernels: dict[str, int] = {}
    for name, norm in norms.items():
        report(f"compiling the {name} form")
        forms[f"{name}, compiled"], kernels[f"{name}, compiled"] = _compiled(norm, inputs)
    for form in forms.values():
        _refuse_other_results(form, forms["ATen, eager"], inputs)
    notes = attached_note()
    variants = {name: _variant(bench, form, inputs) for name, form in forms.items()}
    seconds = time_variants(variants, bench.device, arguments.rounds, report)
    return RmsNormFinding(
        device=bench.device.type,
        rows=arguments.rows,
        width=width,
        dtype=bench.precision.name,
        rounds=arguments.rounds,
        forms=[
            RmsNormForm(name=name, call=median_interval(seconds[name]), kernels=kernels.get(name))
            for name in forms
        ],
        opaque_ratio=paired_median_ratio(seconds["custom, compiled"], seconds["ATen, compiled"]),
        notes=notes,
    )


def _compiled(norm: Norm, inputs: tuple[Tensor, ...]) -> tuple[Form, int]:
    form = torch.compile(surrounded(norm), fullgraph=True, dynamic=False)
    before = metrics.generated_kernel_count
    try:
        with torch.inference_mode():
            form(*inputs)
    except Exception as error:
        raise StudyError("mode_failed", f"the norm does not compile whole: {error}"[:2000]) from error
    return form, metrics.generated_kernel_count - before


def _refuse_other_results(form: Form, reference: Form, inputs: tuple[Tensor, ...]) -> None:
    with torch.inference_mode():
        expected, result = reference(*inputs), form(*inputs)
    # Eight roundings of the dtype, relative to the largest output.
    tolerance = 8 * torch.finfo(expected.dtype).eps * max(1.0, float(expected.abs().max()))
    found = float((result - expected).abs().max()) / tolerance
    if not found <= 1:  # nor where it is NaN
        raise StudyError("mode_failed", f"the norm differs from ATen's by {found:.1f} times the tolerance")


def _variant(bench: Bench, form: Form, inputs: tuple[Tensor, ...]) -> Variant:
    def run(times: int) -> float:
        began = perf_counter_ns()
        for _ in range(times):
            form(*inputs)
        bench.synchronise()
        return (perf_counter_ns() - began) / 1e9

    return Variant(run, State())
