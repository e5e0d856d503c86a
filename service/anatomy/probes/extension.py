"""Probe of C++ operators: one norm as six calls of ATen, from C++ and from Python."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from service.anatomy.cpp_library import load_library
from service.anatomy.probes.blame import line_of, records
from service.anatomy.probes.comparison import Counter, FaultComparison, TimedStep, median_of
from service.anatomy.probes.probed_model import ProbedModel
from service.anatomy.progress import Report
from service.anatomy.rms_norm.study import EPSILON, Norm

_NAMESPACE = "launchbound_extension"
_IN_PYTHON = f"{_NAMESPACE}::rms_norm_in_python"

_SOURCE = """
#include <ATen/ops/add.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsqrt.h>
#include <torch/library.h>

namespace {
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  const int64_t last = -1;
  const auto mean = at::mean(at::pow(x, 2), at::IntArrayRef(last), true);
  return at::mul(at::mul(x, at::rsqrt(at::add(mean, epsilon))), weight);
}
}

TORCH_LIBRARY_FRAGMENT(launchbound_extension, m) {
  m.def("rms_norm(Tensor x, Tensor weight, float epsilon) -> Tensor", &rms_norm);
}
"""
"""Without a dispatch key the function is composite: autograd and the compiler see the calls inside."""


def cpp_operator(cache_folder: str, report: Report) -> Norm:
    """The C++ operator, loaded once per process: (x [..., width], weight [width], epsilon) → as x.

    Raises StudyError where there is no C++ compiler.
    """
    registered: Any = getattr(torch.ops, _NAMESPACE)
    if not hasattr(registered, "rms_norm"):
        load_library(cache_folder, "extension", _SOURCE, report)
    operator: Norm = registered.rms_norm.default
    return operator


def python_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """The calls of the C++ operator, from Python."""
    mean = torch.mean(torch.pow(x, 2), -1, keepdim=True)
    return torch.mul(torch.mul(x, torch.rsqrt(torch.add(mean, epsilon))), weight)


@cache
def python_operator() -> Norm:
    """`python_norm` as a registered operator; once per process."""
    return torch.library.custom_op(_IN_PYTHON, python_norm, mutates_args=())


def cpp_extension(probed: ProbedModel, report: Report) -> FaultComparison:
    """The operator in C++, and the same in Python, each called by itself on the step's hidden states."""
    in_cpp = cpp_operator(probed.bench.settings.cache_folder, report)
    x, weight = _operands(probed)
    without, with_fault = _calling(in_cpp, x, weight), _calling(python_operator(), x, weight)
    function = TimedStep(_calling(python_norm, x, weight))
    report("counting calls of Python")
    return FaultComparison(
        without=TimedStep(without),
        with_fault=TimedStep(with_fault),
        subject=f"one RMS norm over {tuple(x.shape)}, the same six calls of ATen",
        counter=Counter(
            name="python_functions_per_call", before=python_calls(without), after=python_calls(with_fault)
        ),
        blame=line_of(_IN_PYTHON, records(probed, with_fault)),
        notes=[
            f"As a plain Python function it takes {median_of(function, probed.bench.synchronise)}: what the "
            "operator in Python takes longer is its registration, not its calls.",
            "In C++ without a dispatch key it is composite: autograd and the compiler see its six calls.",
        ],
    )


def python_calls(run: Callable[[], object]) -> int:
    """How many Python functions a call of `run` enters, its own included."""
    count = 0

    def watch(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    previous = sys.getprofile()
    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(previous)
    return count


def _operands(probed: ProbedModel) -> tuple[Tensor, Tensor]:
    """Hidden states [bucket, width] and a weight [width], as the model has them."""
    generator = torch.Generator().manual_seed(0)
    width = probed.model.config.width

    def normal(*shape: int) -> Tensor:
        made = torch.randn(shape, generator=generator)
        return made.to(probed.bench.device, probed.bench.precision.weights)

    return normal(probed.buffers.bucket, width), normal(width)


def _calling(operator: Norm, x: Tensor, weight: Tensor) -> Callable[[], Tensor]:
    inference = torch.inference_mode()

    def call() -> Tensor:
        with inference:
            return operator(x, weight, EPSILON)

    return call
