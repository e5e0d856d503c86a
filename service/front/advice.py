"""Which mode to use at a batch size, from what this instance has measured itself, by the report's rule."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from service.front.aligned_requests import WINDOW_SECONDS, ServedRequest, Work, aligned_rounds, options_of
from service.front.errors import NotMeasured
from service.front.request_timing import RequestTiming
from service.protocol.timings import PhaseTimings
from service.statistics.boundedness import bound_in_words, bounds_within, crossover
from service.statistics.choice import MINIMUM_ROUNDS, Choice, Rounds, choose, compare
from service.statistics.estimates import Split, total
from service.statistics.intervals import Interval

BASELINE = "eager"
REQUESTS_KEPT = 2048
"""Of each kind of work, the newest."""
SAMPLED_KEPT = 64
"""Of each mode and batch bucket, the newest that were sampled."""
AGE_SECONDS = 4 * 3600.0
WORKS_KEPT = 64
"""Kinds of work, those that were asked for last."""


@dataclass(frozen=True, slots=True)
class Advice:
    """The answer. `speedup` is of the advised mode over eager; `crossover` the batch where eager turns.

    `index` is decode's; `bound` its class, None where the index's interval allows several. `samples` counts
    the rounds, in each of which every mode did the same work.
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
    requests are left out, and those that were merged with others; of sampled ones only the split counts, and
    before that of all others. `observed` counts those that were taken in.
    """

    def __init__(self) -> None:
        self.observed = 0
        self._newest_seconds = 0.0
        self._served: OrderedDict[Work, deque[ServedRequest]] = OrderedDict()
        self._decode: dict[tuple[str, int], Split] = {}
        self._sampled: dict[tuple[str, int], deque[Split]] = {}

    def observe(self, timing: RequestTiming) -> None:
        """Take in one request that ended well and ran as the form of its mode that was declared."""
        outcome, engine, parts = timing.outcome, timing.engine, timing.parts
        if outcome.profile is not None or (engine.shared is not None and not engine.shared.alone):
            return
        self.observed += 1
        mode, bucket, decode = timing.job.mode, outcome.batch_bucket, engine.decode
        split = _split(decode)
        if parts.sampled:
            if split is not None and split.samples is not None:
                self._sampled.setdefault((mode, bucket), deque(maxlen=SAMPLED_KEPT)).append(split)
            return
        if split is not None:
            known = self._decode.get((mode, bucket))
            self._decode[mode, bucket] = split if known is None else total([known, split])
        work = Work(bucket, engine.padded_prompt_tokens, decode.steps, options_of(timing.job))
        served = self._served.setdefault(work, deque(maxlen=REQUESTS_KEPT))
        self._served.move_to_end(work)
        if len(self._served) > WORKS_KEPT:
            self._served.popitem(last=False)
        seconds = parts.total_seconds - parts.queue_seconds
        self._newest_seconds = max(self._newest_seconds, engine.done_ns / 1e9)
        served.append(ServedRequest(mode, engine.done_ns / 1e9, seconds))

    def advise(self, batch_size: int, buckets: Sequence[int], modes: Sequence[str]) -> Advice:
        """The best of `modes` (in the ladder's order, simplest first) for a batch of `batch_size`.

        By `choice.choose` over rounds of requests that did the same work within two minutes; of several
        kinds of work, over that with the most rounds, or else the newest. What ended AGE_SECONDS before the
        newest request counts no more: the machine is another by then. Raises NotMeasured, naming what to
        run, where eager is not served, or there are fewer than 8 such rounds.
        """
        if BASELINE not in modes:
            raise NotMeasured(f"advice is against {BASELINE}, which is not ready here: add it to --modes")
        bucket = min(size for size in buckets if size >= batch_size)
        found = {
            work: aligned_rounds(self._recent(served), modes)
            for work, served in reversed(self._served.items())
            if work.bucket == bucket
        }
        work = max(found, key=lambda work: len(found[work][BASELINE]), default=None)
        choice = None if work is None else choose(found[work])
        if work is None or choice is None:
            rounds = 0 if work is None else len(found[work][BASELINE])
            raise NotMeasured(self._remedy(batch_size, bucket, modes, rounds))
        return self._answer(work, choice, found[work], buckets)

    def _recent(self, served: Iterable[ServedRequest]) -> Iterator[ServedRequest]:
        oldest = self._newest_seconds - AGE_SECONDS
        return (request for request in served if request.ended_seconds >= oldest)

    def _remedy(self, batch_size: int, bucket: int, modes: Sequence[str], rounds: int) -> str:
        """Why modes cannot be compared at this bucket, and what to run."""
        works = [served for work, served in self._served.items() if work.bucket == bucket]
        seen = {request.mode for served in works for request in self._recent(served)}
        missing = [mode for mode in modes if mode not in seen]
        why = f"no request ran in {', '.join(missing)}"
        if not missing:
            together = f"all modes did the same work within {WINDOW_SECONDS:.0f} s"
            why = f"not comparable: {together} in {rounds} of the {MINIMUM_ROUNDS} rounds needed"
        prompts = "1 prompt" if batch_size == 1 else f"{batch_size} prompts"
        return (
            f"at batch {batch_size} (bucket {bucket}) {why}; POST /v1/compare with {prompts} and "
            f'"repeats": {MINIMUM_ROUNDS}, or run a sweep'
        )

    def _answer(
        self, work: Work, choice: Choice, rounds: Mapping[str, Rounds], buckets: Sequence[int]
    ) -> Advice:
        eager = {size: index for size in buckets if (index := self._index(BASELINE, size))}
        turn = crossover({size: index.value for size, index in eager.items()})
        index = self._index(choice.ship, work.bucket)
        classes = () if index is None else bounds_within(index)
        speedup = compare(rounds[BASELINE], rounds[choice.ship]).speedup
        return Advice(
            bucket=work.bucket,
            mode=choice.ship,
            reason=_reason(work, choice, speedup, eager.get(work.bucket)),
            bound=classes[0] if len(classes) == 1 else None,
            index=None if index is None else index.value,
            crossover=turn.batch if turn.where == "at" else None,
            speedup=speedup,
            samples=speedup.samples,
        )

    def _index(self, mode: str, bucket: int) -> Interval | None:
        """The device-bound index of all decode steps, with the interval of their dispatch.

        Of those that were sampled, where any were.
        """
        sampled = self._sampled.get((mode, bucket))
        split = total(sampled) if sampled else self._decode.get((mode, bucket))
        if split is None or split.dispatch + split.kernel <= 0:
            return None
        return Interval(split.index, *split.index_ends, 1)


def _split(decode: PhaseTimings) -> Split | None:
    dispatch, kernel = decode.dispatch_seconds, decode.kernel_seconds
    if dispatch is None or kernel is None:
        return None
    low, high = decode.dispatch_low_seconds, decode.dispatch_high_seconds
    return Split(
        dispatch,
        kernel,
        dispatch if low is None else low,
        dispatch if high is None else high,
        _samples(decode),
    )


def _samples(decode: PhaseTimings) -> tuple[int, int, int] | None:
    kernel, host, unnamed = decode.kernel_samples, decode.host_samples, decode.unnamed_samples
    if kernel is None or host is None or unnamed is None or not kernel + host:
        return None
    return kernel, host, unnamed


def _reason(work: Work, choice: Choice, speedup: Interval, eager_index: Interval | None) -> str:
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
        share = f"of eager's decode {1 - eager_index.value:.0%} of dispatch and kernel time is dispatch"
        parts.append(f"{share}: {bound_in_words(eager_index)}")
    return "; ".join(parts)


def _times(ratio: Interval) -> str:
    return f"{ratio.value:.2f} (95 % interval {ratio.low:.2f} to {ratio.high:.2f})"
