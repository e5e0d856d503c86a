"""What the other modes leave of a step's dispatch and kernels, and how much faster the step is with that."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from service.anatomy.budget.steps import Key, Steps
from service.anatomy.budget.verdict import step_of
from service.measure.split import DispatchSplit
from service.protocol.modes import MODES
from service.statistics.intervals import Interval, median_interval


class ModeGain(msgspec.Struct, frozen=True, kw_only=True):
    """`mode` against the budget's own mode, at the budget's batch.

    `dispatch_ratio` and `kernel_ratio` are its seconds over that mode's, None where the latter are 0; each
    bound combines the worse ends of both. `speedup` is measured, round by round. `compiles`: kernels are
    fused, so that `kernel_ratio` is the compiler's work. `graph_replay`: the host issues one call.
    """

    mode: str
    effective: str
    compiles: bool
    graph_replay: bool
    dispatch_ratio: Interval | None
    kernel_ratio: Interval | None
    speedup: Interval


def mode_gains(
    key: Key, steps: Steps, splits: Mapping[Key, DispatchSplit], device_type: str
) -> list[ModeGain]:
    """The gain of every other mode in `splits` at the batch of `key`; none where `key` is not in it."""
    if key not in splits:
        return []
    own = splits[key]
    others = [(mode, batch) for mode, batch in splits if batch == key[1] and mode != key[0]]
    found = []
    for other in others:
        effect = MODES[other[0]].effect(device_type)
        walls = zip(steps.walls[key], steps.walls[other], strict=True)
        found.append(
            ModeGain(
                mode=other[0],
                effective=effect.name,
                compiles=effect.compiles,
                graph_replay=effect.graph_replay,
                dispatch_ratio=_ratio(splits[other].dispatch, own.dispatch),
                kernel_ratio=_ratio(splits[other].kernel, own.kernel),
                speedup=median_interval([base / wall for base, wall in walls]),
            )
        )
    return found


def speedup_with(
    dispatch_ratio: float, kernel_ratio: float, dispatch: float, kernel: float, device_type: str
) -> float | None:
    """A step of `dispatch` and `kernel` over the same step with these shares of them left.

    An extrapolation: it takes the ratios, which were measured on one step, to hold for another. None where
    nothing would be left.
    """
    left = step_of(dispatch * dispatch_ratio, kernel * kernel_ratio, device_type)
    return step_of(dispatch, kernel, device_type) / left if left > 0 else None


def _ratio(above: Interval, below: Interval) -> Interval | None:
    if below.value <= 0:
        return None
    return Interval(
        above.value / below.value,
        max(0.0, above.low) / below.high if below.high > 0 else 0.0,
        above.high / below.low if below.low > 0 else float("inf"),
        min(above.samples, below.samples),
    )
