"""What torch's profiler counts in one step: launch calls; a graph replay of 90 kernels is one of them."""

from __future__ import annotations

import torch
from torch.profiler import ProfilerActivity, profile

from service.step.callables import Buffers, Step

GRAPH_LAUNCH_CALLS = frozenset({"cudaGraphLaunch", "cuGraphLaunch"})
KERNEL_LAUNCH_CALLS = frozenset(
    {
        "cudaLaunchKernel",
        "cuLaunchKernel",
        "cudaLaunchKernelExC",
        "cuLaunchKernelEx",
        "cudaLaunchCooperativeKernel",
    }
)


def launch_calls(step: Step, buffers: Buffers) -> dict[str, int]:
    """Driver and runtime calls that launched work in one decode step on CUDA, by name."""
    step(*buffers.arguments("decode"))
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        step(*buffers.arguments("decode"))
        torch.cuda.synchronize()
    known = GRAPH_LAUNCH_CALLS | KERNEL_LAUNCH_CALLS
    found = {event.key: event.count for event in profiler.key_averages() if event.key in known}
    return {name: found[name] for name in sorted(found)}


def graph_launches(step: Step, buffers: Buffers) -> int:
    """CUDA-graph launches in one decode step."""
    return sum(count for name, count in launch_calls(step, buffers).items() if name in GRAPH_LAUNCH_CALLS)
