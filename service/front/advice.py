"""Which mode to use at a batch size, from what this instance has measured itself, by the report's rule."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.front.aligned_requests import WINDOW_SECONDS, ServedRequest, Work, aligned_rounds
from service.front.errors import NotMeasured
from service.front.request_timing import RequestTiming
from service.statistics.boundedness import bound, crossover, device_bound_index
from service.statistics.choice import MINIMUM_ROUNDS, Choice, Rounds, choose, compare
from service.statistics.intervals import Interval

BASELINE = "eager"
REQUESTS_KEPT = 2048
"""Of each kind of work, the newest."""
WORKS_KEPT = 64
"""Kinds of work, those that were asked for last."""


@dataclass(slots=True)
class _DecodeSums:
    """What the decode steps of all requests summed up to."""

    kernel_seconds: float = 0.0
    dispatch_seconds: float = 0.0

    @property
    def index(self) -> float | None:
        return device_bound_index(self.kernel_seconds, self.dispatch_seconds)


@dataclass(frozen=True, slots=True)
class Advice:
    """The answer. `speedup` is of the advised mode over eager; `crossover` the batch where eager turns.

    `index` is decode's. `samples` counts the rounds, in each of which every mode did the same work.
    """

    bucket: int
    mode: str
    reason: str
    bound: str | None
    index: float | None
    crossover: float | None
    speedup: Interval
    samples: int


class ServedRequests:
    """What served requests took, by the work that they did, and their decode's kernel and dispatch time.

    Whole requests without their queue are compared, and only with requests of the same work. Profiled
    requests are left out.
    """

    def __init__(self) -> None:
        self._served: OrderedDict[Work, deque[ServedRequest]] = OrderedDict()
        self._decode: dict[tuple[str, int], _DecodeSums] = defaultdict(_DecodeSums)

    def observe(self, timing: RequestTiming) -> None:
        """Take in one request that ended well and ran as the form of its mode that was declared."""
        outcome, engine, parts = timing.outcome, timing.engine, timing.parts
        if outcome.profile is not None:
            return
        mode, bucket, decode = timing.job.mode, outcome.batch_bucket, engine.decode
        work = Work(bucket, engine.prefill.steps, decode.steps, greedy=timing.job.temperature == 0)
        served = self._served.setdefault(work, deque(maxlen=REQUESTS_KEPT))
        self._served.move_to_end(work)
        if len(self._served) > WORKS_KEPT:
            self._served.popitem(last=False)
        seconds = parts.total_seconds - parts.queue_seconds
        served.append(ServedRequest(mode, engine.done_ns / 1e9, seconds))
        if decode.kernel_seconds is not None and decode.dispatch_seconds is not None:
            self._decode[mode, bucket].kernel_seconds += decode.kernel_seconds
            self._decode[mode, bucket].dispatch_seconds += decode.dispatch_seconds

    def advise(self, batch_size: int, buckets: Sequence[int], modes: Sequence[str]) -> Advice:
        """The best of `modes` (in the ladder's order, simplest first) for a batch of `batch_size`.

        By `choice.choose` over rounds of requests that did the same work within two minutes; of several
        kinds of work, over that with the most rounds. Raises NotMeasured, naming what to run, where eager is
        not served, or there are fewer than 8 such rounds.
        """
        if BASELINE not in modes:
            raise NotMeasured(f"advice is against {BASELINE}, which is not ready here: add it to --modes")
        bucket = min(size for size in buckets if size >= batch_size)
        found = {
            work: aligned_rounds(served, modes)
            for work, served in self._served.items()
            if work.bucket == bucket
        }
        work = max(found, key=lambda work: len(found[work][BASELINE]), default=None)
        choice = None if work is None else choose(found[work])
        if work is None or choice is None:
            rounds = 0 if work is None else len(found[work][BASELINE])
            raise NotMeasured(self._remedy(batch_size, bucket, modes, rounds))
        return self._answer(work, choice, found[work], buckets)

    def _remedy(self, batch_size: int, bucket: int, modes: Sequence[str], rounds: int) -> str:
        """Why modes cannot be compared at this bucket, and what to run."""
        works = [served for work, served in self._served.items() if work.bucket == bucket]
        seen = {request.mode for served in works for request in served}
        missing = [mode for mode in modes if mode not in seen]
        why = f"no request ran in {', '.join(missing)}"
        if not missing:
            together = f"all modes did the same work within {WINDOW_SECONDS:.0f} s"
            why = f"not comparable: {together} in {rounds} of the {MINIMUM_ROUNDS} rounds needed"
        return (
            f"at batch {batch_size} (bucket {bucket}) {why}; POST /v1/compare with {batch_size} prompts and "
            f'"repeats": {MINIMUM_ROUNDS}, or run a sweep'
        )

    def _answer(
        self, work: Work, choice: Choice, rounds: Mapping[str, Rounds], buckets: Sequence[int]
    ) -> Advice:
        indices = {
            size: self._decode[BASELINE, size].index for size in buckets if (BASELINE, size) in self._decode
        }
        turn = crossover({size: index for size, index in indices.items() if index is not None})
        sums = self._decode.get((choice.ship, work.bucket))
        index = None if sums is None else sums.index
        speedup = compare(rounds[BASELINE], rounds[choice.ship]).speedup
        return Advice(
            bucket=work.bucket,
            mode=choice.ship,
            reason=_reason(work, choice, speedup, indices.get(work.bucket)),
            bound=bound(index),
            index=index,
            crossover=turn.batch if turn.where == "at" else None,
            speedup=speedup,
            samples=speedup.samples,
        )


def _reason(work: Work, choice: Choice, speedup: Interval, eager_index: float | None) -> str:
    parts = [
        "no other mode is detectably faster than eager here, and eager is the simplest"
        if choice.ship == BASELINE
        else f"a whole request ({work.name}) is {_times(speedup)} times as fast as eager's"
    ]
    if choice.given_up is not None:
        parts.append(
            f"tied with {choice.fastest}, which is {_times(choice.given_up)} times as fast, and simpler"
        )
    if eager_index is not None:
        share = f"of eager's decode {1 - eager_index:.0%} of dispatch and kernel time is dispatch"
        parts.append(f"{share}: {bound(eager_index)}")
    return "; ".join(parts)


def _times(ratio: Interval) -> str:
    return f"{ratio.value:.2f} (95 % interval {ratio.low:.2f} to {ratio.high:.2f})"
