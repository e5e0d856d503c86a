"""The kernels of a step by name, on CUDA."""

from __future__ import annotations

from service.anatomy.progress import Report
from service.measure.cases import Bench, Case
from service.measure.kernel_table import KernelTable, kernel_table
from service.step.null_kernel import measure_null_kernel

NO_KERNELS = (
    "kernels are unknown: the profiler saw none; is CUPTI allowed here? `make gpu-check` looks into it"
)


def kernels_of(bench: Bench, case: Case, report: Report) -> KernelTable | None:
    """The table beside the null-kernel floor; None on a CPU, and where the profiler saw no kernels."""
    if bench.device.type != "cuda":
        return None
    return kernel_table(bench, case, measure_null_kernel(bench.device).seconds.get("in_graph"), report)
