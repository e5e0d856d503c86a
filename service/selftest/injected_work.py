"""Checks with injected work: work of a known length moves its own number and not the other one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns

import torch

from service.measure.cases import Case
from service.measure.rounds import Log, in_rounds
from service.measure.variants import Variants
from service.selftest.results import CheckResult, interval_result, not_measurable
from service.statistics.intervals import median_interval
from service.step.callables import InjectedWork

ROUNDS = 30
STEPS = 12
MODES = ("eager", "compiled")
HOST_SECONDS = 1e-3
TIMES_LONGER = 8
ELEMENTS = 1280
"""Elements of the short kernel; the long one has `TIMES_LONGER` as many, the twin's one."""

GAMMA_AT = 200.0
"""The argument at which that function takes longest."""

SHARE = 0.05


@dataclass(frozen=True, slots=True)
class InjectionCases:
    """A step without and with more injected work, real and hollow; `alone` gives the seconds of the more."""

    plain: Case
    more: Case
    plain_twin: Case
    more_twin: Case
    alone: Callable[[], float]


def busy(variants: Variants, elements: int) -> InjectedWork:
    """One operator whose time is in its kernel: the incomplete gamma function, about 0.1 µs per element.

    It reads one element over and over and writes little, so that its length does not depend on the caches.
    """
    shape = torch.full((1,), GAMMA_AT, device=variants.device).expand(elements)
    at = shape.clone()[:1].expand(elements)
    out = torch.empty(elements, device=variants.device)
    return InjectedWork(kernel=lambda: torch.igamma(shape, at, out=out))


def longer_kernel(variants: Variants, log: Log) -> list[CheckResult]:
    """A kernel made eight times longer."""
    short, long, hollow = (busy(variants, elements) for elements in (ELEMENTS, ELEMENTS * TIMES_LONGER, 1))

    def cases_of(mode: str) -> InjectionCases:
        twin = variants.twin(mode, hollow)
        bare = variants.case(mode)
        return InjectionCases(
            variants.case(mode, injected=short),
            variants.case(mode, injected=long),
            twin,
            twin,
            lambda: _kernel_seconds(long, bare) - _kernel_seconds(short, bare),
        )

    what = f"a kernel {TIMES_LONGER} times longer"
    return _rows(variants, log, what, cases_of, moved="kernel")


def added_host_work(variants: Variants, log: Log) -> list[CheckResult]:
    """A millisecond of host work added to every step."""
    spin = InjectedWork(host_seconds=HOST_SECONDS)

    def cases_of(mode: str) -> InjectionCases:
        return InjectionCases(
            variants.case(mode),
            variants.case(mode, injected=spin),
            variants.twin(mode),
            variants.twin(mode, spin),
            lambda: HOST_SECONDS,
        )

    return _rows(variants, log, "1 ms more host work per step", cases_of, moved="dispatch")


def _kernel_seconds(injected: InjectedWork, before: Case) -> float:
    """The kernel by itself: the shortest of four, each after a step, as cold as it is inside one."""
    assert injected.kernel is not None
    samples = []
    for _ in range(4):
        before.call_seconds()
        began = perf_counter_ns()
        injected.kernel()
        samples.append((perf_counter_ns() - began) / 1e9)
    return min(samples)


def _rows(
    variants: Variants, log: Log, what: str, cases_of: Callable[[str], InjectionCases], moved: str
) -> list[CheckResult]:
    other = "dispatch" if moved == "kernel" else "kernel"
    bounds = {moved: f"moves by it ± {SHARE:.0%}", other: f"moves by < {SHARE:.0%} of it"}
    if variants.device.type != "cpu":
        why = "only on a CPU does the twin's floor separate dispatch from kernels"
        return [not_measurable(f"{what}: {part}", bound, why) for part, bound in bounds.items()]
    rows = []
    for mode in (mode for mode in MODES if mode in variants.modes):
        log(f"{mode}, building")
        shifts = _shifts(variants, cases_of(mode), log, f"{what}/{mode}")
        for part, bound in bounds.items():
            centre = 1.0 if part == moved else 0.0
            rows.append(
                interval_result(
                    f"{what}: {part}, {mode}",
                    bound,
                    median_interval(shifts[part]),
                    least=centre - SHARE,
                    most=centre + SHARE,
                    unit="of what was added",
                    numbers={"shift": shifts[part], "added_seconds": shifts["added"]},
                )
            )
    return rows


def _shifts(variants: Variants, cases: InjectionCases, log: Log, seed: str) -> dict[str, list[float]]:
    """Per round, how far dispatch (floor) and kernel (wall less floor) moved, as shares of what was added."""
    # The shortest of a few, because interference only adds time.
    arms: dict[str, Callable[[], float]] = {
        "plain": lambda: cases.plain.steady_seconds(STEPS, min),
        "more": lambda: cases.more.steady_seconds(STEPS, min),
        "plain_floor": lambda: variants.floor_seconds(cases.plain_twin, STEPS, min),
        "more_floor": lambda: variants.floor_seconds(cases.more_twin, STEPS, min),
        "alone": cases.alone,
    }
    with variants.isolated():
        found = in_rounds(arms, ROUNDS, seed, log)
    added = found["alone"]
    dispatch = [more - plain for more, plain in zip(found["more_floor"], found["plain_floor"], strict=True)]
    wall = [more - plain for more, plain in zip(found["more"], found["plain"], strict=True)]
    return {
        "dispatch": [d / a for d, a in zip(dispatch, added, strict=True)],
        "kernel": [(w - d) / a for w, d, a in zip(wall, dispatch, added, strict=True)],
        "added": added,
    }
