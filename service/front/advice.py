"""Which mode to use at a batch size, from what this instance has measured itself."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from service.front.errors import NotMeasured
from service.front.request_timing import RequestTiming
from service.statistics.boundedness import bound, crossover, device_bound_index
from service.statistics.intervals import Interval, unpaired_ratio

BASELINE = "eager"
SAMPLES_NEEDED = 8
SAMPLES_KEPT = 256


@dataclass(slots=True)
class _StepSamples:
    """Wall seconds per decode step of the newest requests, and what all of them summed up to, prefill too."""

    step_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES_KEPT))
    kernel_seconds: float = 0.0
    dispatch_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Advice:
    """The answer. `speedup` is of the advised mode over eager; `crossover` the batch where eager turns."""

    bucket: int
    mode: str
    reason: str
    bound: str | None
    index: float | None
    crossover: float | None
    speedup: Interval
    samples: int


class StepStatistics:
    """Per (mode, batch bucket) what served requests took per decode step.

    A step's wall time does not depend on how long prompts and completions are, so requests of all kinds can
    be compared by it. Profiled requests are left out.
    """

    def __init__(self) -> None:
        self._samples: dict[tuple[str, int], _StepSamples] = defaultdict(_StepSamples)

    def observe(self, timing: RequestTiming) -> None:
        """Take in one request that ended well."""
        decode, outcome = timing.engine.decode, timing.outcome
        if outcome.profile is not None or decode.wall_seconds is None or decode.steps == 0:
            return
        sample = self._samples[timing.job.mode, outcome.batch_bucket]
        sample.step_seconds.append(decode.wall_seconds / decode.steps)
        if timing.parts.kernel_seconds is not None and timing.parts.dispatch_seconds is not None:
            sample.kernel_seconds += timing.parts.kernel_seconds
            sample.dispatch_seconds += timing.parts.dispatch_seconds

    def advise(self, batch_size: int, buckets: Sequence[int], modes: Sequence[str]) -> Advice:
        """The best of `modes` (in the ladder's order, simplest first) for a batch of `batch_size`.

        The fastest by mean log step time; of those that it cannot be told apart from at 95 %, the simplest.
        Raises NotMeasured, naming what to run, where eager or another mode has too few samples.
        """
        bucket = min(size for size in buckets if size >= batch_size)
        samples = {mode: self._samples[mode, bucket] for mode in modes if (mode, bucket) in self._samples}
        missing = [
            mode
            for mode in dict.fromkeys([BASELINE, *modes])
            if mode not in samples or len(samples[mode].step_seconds) < SAMPLES_NEEDED
        ]
        if BASELINE not in modes:
            raise NotMeasured(f"advice is against {BASELINE}, which is not ready here: add it to --modes")
        if missing:
            raise NotMeasured(
                f"at batch {batch_size} (bucket {bucket}) too few requests ran in {', '.join(missing)}: "
                f'POST /v1/compare with {batch_size} prompts and "repeats": {SAMPLES_NEEDED}, or run a sweep'
            )
        fastest = min(samples, key=lambda mode: _mean_log(samples[mode]))
        chosen = next(mode for mode in modes if mode == fastest or _alike(samples[mode], samples[fastest]))
        return self._answer(bucket, chosen, samples, buckets)

    def _answer(
        self, bucket: int, mode: str, samples: dict[str, _StepSamples], buckets: Sequence[int]
    ) -> Advice:
        sample, eager = samples[mode], samples[BASELINE]
        index = device_bound_index(sample.kernel_seconds, sample.dispatch_seconds)
        known = {size: self._samples[BASELINE, size] for size in buckets if (BASELINE, size) in self._samples}
        indices = {
            size: device_bound_index(c.kernel_seconds, c.dispatch_seconds) for size, c in known.items()
        }
        turn = crossover({size: value for size, value in indices.items() if value is not None})
        speedup = unpaired_ratio(eager.step_seconds, sample.step_seconds)
        return Advice(
            bucket=bucket,
            mode=mode,
            reason=_reason(mode, speedup, indices.get(bucket)),
            bound=bound(index),
            index=index,
            crossover=turn.batch if turn.where == "at" else None,
            speedup=speedup,
            samples=len(sample.step_seconds),
        )


def _mean_log(sample: _StepSamples) -> float:
    return sum(map(math.log, sample.step_seconds)) / len(sample.step_seconds)


def _alike(sample: _StepSamples, fastest: _StepSamples) -> bool:
    return not unpaired_ratio(sample.step_seconds, fastest.step_seconds).excludes_one


def _reason(mode: str, speedup: Interval, eager_index: float | None) -> str:
    if mode == BASELINE:
        return "no other mode is detectably faster than eager here, and eager is the simplest"
    share = (
        ""
        if eager_index is None
        else (
            f"; of eager's dispatch and kernel time {1 - eager_index:.0%} is dispatch: {bound(eager_index)}"
        )
    )
    return (
        f"a decode step is {speedup.value:.2f} times as fast as eager's "
        f"(95 % interval {speedup.low:.2f} to {speedup.high:.2f}){share}"
    )
