"""Probe of a custom operator: disabled for the compiler, or registered so that it can be traced."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from models.served import Served
from service.anatomy.errors import StudyError
from service.anatomy.probes.blame import line_of_break
from service.anatomy.probes.comparison import Counter, FaultComparison, TimedStep
from service.anatomy.probes.compiling import compile_counting, compiled
from service.anatomy.probes.probed_model import ProbedModel
from service.anatomy.progress import Report
from service.anatomy.rms_norm.study import Norm, aten_rms_norm, rms_norm_operator

_EPSILONS = ("epsilon", "variance_epsilon", "eps")


class _Norm(nn.Module):
    """An RMS norm that calls `kernel`."""

    def __init__(self, kernel: Norm, weight: Tensor, epsilon: float) -> None:
        super().__init__()
        self.kernel = kernel
        self.weight = weight
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return self.kernel(x, self.weight, self.epsilon)


@cache
def _without_fake() -> Norm:
    """ATen's norm as a custom operator without a fake; registered once per process."""

    @torch.library.custom_op("launchbound_probes::rms_norm_without_fake", mutates_args=())
    def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        return aten_rms_norm(x, weight, epsilon)

    return rms_norm


def custom_op(probed: ProbedModel, report: Report) -> FaultComparison:
    """The last norm through a custom kernel: as a registered operator, and as a plain function."""
    kernel = rms_norm_operator()
    report("compiling with the registered operator")
    without = probed.served(compiled(_with_norm(probed, kernel)))
    before = compile_counting(without)
    report("compiling around the plain function")
    with_fault = probed.served(compiled(_with_norm(probed, torch.compiler.disable(kernel))))
    after = compile_counting(with_fault)
    return FaultComparison(
        without=TimedStep(without),
        with_fault=TimedStep(with_fault),
        counter=Counter(name="graph_breaks", before=before.breaks, after=after.breaks),
        blame=line_of_break(after.reasons),
        notes=[
            f"{before.graphs} graph became {after.graphs}: {after.first_reason}.",
            f"Registered without a fake, the step {_compile_without_fake(probed)}.",
            "Both are opaque to the compiler: it cannot fuse the norm with its neighbours.",
        ],
    )


def _compile_without_fake(probed: ProbedModel) -> str:
    """How the step compiles with an operator that has no fake."""
    call = probed.served(compiled(_with_norm(probed, _without_fake()), backend="eager"))
    try:
        breaks = compile_counting(call).breaks
    except RuntimeError as error:
        return f"does not compile at all ({type(error).__name__})"
    return f"compiles with {breaks} graph breaks"


def _with_norm(probed: ProbedModel, kernel: Norm) -> Served:
    """A copy of the model whose last RMS norm runs `kernel`. Raises StudyError where it has none."""
    model = probed.copy()
    norms = [(name, module) for name, module in model.named_modules() if "RMSNorm" in type(module).__name__]
    if not norms:
        raise StudyError("unsupported_here", "this probe replaces an RMS norm, and this model has none")
    name, norm = norms[-1]
    epsilon = next(float(getattr(norm, known)) for known in _EPSILONS if hasattr(norm, known))
    parent, _, own_name = name.rpartition(".")
    setattr(model.get_submodule(parent), own_name, _Norm(kernel, norm.get_parameter("weight"), epsilon))
    return model
