"""Work of a known length put into the step moves its own number and leaves the other alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns

import torch

from service.measure.rounds import Say, in_rounds
from service.measure.variants import Case, Lab
from service.selftest.results import CheckResult, judged, not_measurable
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
"""Where that function takes longest."""

SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Pair:
    """The same step without and with more of something, real and hollow, and that something alone."""

    plain: Case
    more: Case
    plain_twin: Case
    more_twin: Case
    alone: Callable[[], float]


def busy(lab: Lab, elements: int) -> InjectedWork:
    """One operator whose time is in its kernel: the incomplete gamma function, about 0.1 µs per element.

    It reads one element over and over and writes little, so that its length does not depend on the caches.
    """
    shape = torch.full((1,), GAMMA_AT, device=lab.device).expand(elements)
    at, out = shape.clone()[:1].expand(elements), torch.empty(elements, device=lab.device)
    return InjectedWork(kernel=lambda: torch.igamma(shape, at, out=out))


def longer_kernel(lab: Lab, say: Say) -> list[CheckResult]:
    """A kernel made eight times longer."""
    short, long, hollow = (busy(lab, elements) for elements in (ELEMENTS, ELEMENTS * TIMES_LONGER, 1))

    def pair(mode: str) -> Pair:
        twin, bare = lab.twin(mode, hollow), lab.case(mode)
        return Pair(
            lab.case(mode, injected=short),
            lab.case(mode, injected=long),
            twin,
            twin,
            lambda: _kernel_seconds(long, bare) - _kernel_seconds(short, bare),
        )

    what = f"a kernel {TIMES_LONGER} times longer"
    return _rows(lab, say, what, pair, moved="kernel")


def added_host_work(lab: Lab, say: Say) -> list[CheckResult]:
    """A millisecond of host work added to every step."""
    spin = InjectedWork(host_seconds=HOST_SECONDS)

    def pair(mode: str) -> Pair:
        return Pair(
            lab.case(mode),
            lab.case(mode, injected=spin),
            lab.twin(mode),
            lab.twin(mode, spin),
            lambda: HOST_SECONDS,
        )

    return _rows(lab, say, "1 ms more host work per step", pair, moved="dispatch")


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


def _rows(lab: Lab, say: Say, what: str, pair: Callable[[str], Pair], moved: str) -> list[CheckResult]:
    other = "dispatch" if moved == "kernel" else "kernel"
    bounds = {moved: f"moves by it ± {SHARE:.0%}", other: f"moves by < {SHARE:.0%} of it"}
    if lab.device.type != "cpu":
        why = "the twin's floor is a CPU's way to tell the two apart"
        return [not_measurable(f"{what}: {part}", bound, why) for part, bound in bounds.items()]
    rows = []
    for mode in (mode for mode in MODES if mode in lab.modes):
        say(f"{mode}, building")
        shifts = _shifts(lab, pair(mode), say, f"{what}/{mode}")
        for part, bound in bounds.items():
            centre = 1.0 if part == moved else 0.0
            rows.append(
                judged(
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


def _shifts(lab: Lab, pair: Pair, say: Say, seed: str) -> dict[str, list[float]]:
    """Per round, how far dispatch (floor) and kernel (wall less floor) moved, as shares of what was added."""
    # The shortest of a few: what is asked is how much was added, and interference only ever adds.
    arms: dict[str, Callable[[], float]] = {
        "plain": lambda: pair.plain.decode_seconds(STEPS, min),
        "more": lambda: pair.more.decode_seconds(STEPS, min),
        "plain_floor": lambda: lab.floor_seconds(pair.plain_twin, STEPS, min),
        "more_floor": lambda: lab.floor_seconds(pair.more_twin, STEPS, min),
        "alone": pair.alone,
    }
    with lab.settled():
        found = in_rounds(arms, ROUNDS, seed, say)
    added = found["alone"]
    dispatch = [more - plain for more, plain in zip(found["more_floor"], found["plain_floor"], strict=True)]
    wall = [more - plain for more, plain in zip(found["more"], found["plain"], strict=True)]
    return {
        "dispatch": [d / a for d, a in zip(dispatch, added, strict=True)],
        "kernel": [(w - d) / a for w, d, a in zip(wall, dispatch, added, strict=True)],
        "added": added,
    }
