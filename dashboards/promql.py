"""The few shapes of PromQL that the boards are made of; every name without its `launchbound_` prefix.

Two windows: graphs rate over `$__rate_interval`; tables and bars compare modes over the whole time shown
(`$__range`), because a sweep visits one mode after another and a short window would hold only the last.
"""

from __future__ import annotations

HERE = 'job=~"$job", instance=~"$instance"'
OF_MODE = HERE + ', mode=~"$mode"'
OF_EAGER = HERE + ', mode="eager"'
DECODE = ', phase="decode"'
PREFILL = ', phase="prefill"'
NOW = "$__rate_interval"
SHOWN = "$__range"

WHERE_STEPS_ARE_MEASURED = (
    f" and on (job, instance, mode, phase) launchbound_step_device_span_seconds_count{{{OF_MODE}}}"
)
"""Keeps series of instances on CUDA. Elsewhere no single step is split, so quantiles mean nothing."""

_PARTS = ("queue", "dispatch", "sync_wait", "kernel", "stall", "other")


def series(name: str, labels: str = OF_MODE) -> str:
    """`launchbound_<name>` of the chosen job, instance and, unless `labels` is given, mode."""
    return f"launchbound_{name}{{{labels}}}"


def rate(name: str, labels: str = OF_MODE, window: str = NOW) -> str:
    return f"rate({series(name, labels)}[{window}])"


def total_rate(name: str, by: str = "mode", labels: str = OF_MODE, window: str = NOW) -> str:
    """Per-second increase, summed to the labels `by` (all of it where `by` is empty)."""
    return f"sum{f' by ({by})' if by else ''} ({rate(name, labels, window)})"


def mean(name: str, by: str = "mode", labels: str = OF_MODE, window: str = NOW) -> str:
    """Exact mean of a histogram or summary: sum over count; no series, instead of NaN, without traffic."""
    total, count = (total_rate(f"{name}_{part}", by, labels, window) for part in ("sum", "count"))
    return f"{total} / ({count} > 0)"


def mean_since_start(name: str) -> str:
    """Mean since the service started, for what happens only at its start and in no later window."""
    total, count = (f"sum by (mode) ({series(f'{name}_{part}')})" for part in ("sum", "count"))
    return f"{total} / ({count} > 0)"


def quantile(
    q: float, name: str, by: str = "mode", labels: str = OF_MODE, window: str = NOW, only: str = ""
) -> str:
    """Quantile `q` (0 to 1) of a classic histogram; `>= 0` drops the NaN of an empty window.

    `only` is a set operation that keeps some of the bucket series.
    """
    buckets = f"{rate(f'{name}_bucket', labels, window)}{only}"
    return f"histogram_quantile({q}, sum by ({f'{by}, le' if by else 'le'}) ({buckets})) >= 0"


def speedup_over_eager(by_batch: bool) -> str:
    """Eager's mean decode step over each mode's, paired per batch bucket.

    With `by_batch` one series per (mode, batch); else their geometric mean per mode, so that a mode which
    got the larger batches does not appear slower. Eager is read whatever `$mode` is.
    """
    eager = mean("step_batch_period_seconds", "batch", OF_EAGER + DECODE, SHOWN)
    each = mean("step_batch_period_seconds", "mode, batch", OF_MODE + DECODE, SHOWN)
    # The empty brackets keep the right side from being read as a list of labels.
    ratio = f"({eager}) / on (batch) group_right () ({each})"
    return ratio if by_batch else f"exp(avg by (mode) (ln({ratio})))"


def request_parts(window: str = NOW) -> dict[str, str]:
    """Part of a request → its mean by mode; the parts that a device can measure add up to the total.

    Kernels stack only where they run on the host's timeline (a CPU). On CUDA they run in parallel and
    would be counted twice; such an instance is recognised by its sync wait, a series absent on a CPU.
    """
    beside_host = f"unless on (job, instance, mode) {series('request_sync_wait_seconds_count')}"
    total, count = (
        f"sum by (mode) ({rate(f'request_kernel_seconds_{part}', OF_MODE, window)} {beside_host})"
        for part in ("sum", "count")
    )
    means = {part: mean(f"request_{part}_seconds", "mode", OF_MODE, window) for part in _PARTS}
    means["kernel"] = f"{total} / ({count} > 0)"
    # A series that is absent where requests are not merged, and none of them stalls another.
    means["stall"] = f"({means['stall']}) or 0 * ({means['queue']})"
    return {part.replace("_", " "): expr for part, expr in means.items()}
