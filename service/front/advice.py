"""Which mode to use at a batch size, by the report's rule, and what `auto` runs."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from statistics import median
from time import monotonic
from typing import Literal

from service.front.engine_client import Listener
from service.front.errors import NotMeasured
from service.front.request_timing import RequestTiming
from service.front.settings import SweepAdvice
from service.modes import AUTO
from service.records import EngineStatus, Job, ModeStatus
from service.statistics.boundedness import bound_in_words, bounds_within, crossover, device_bound_index
from service.statistics.choice import BASELINE as PLAIN
from service.statistics.choice import (
    CONFIDENCE,
    MARGIN,
    MINIMUM_ROUNDS,
    Choice,
    Rounds,
    State,
    choose,
    compare,
)
from service.statistics.intervals import Interval
from service.workloads import GENERATE, Workload

EAGER = "eager"
"""The mode of which the crossover is said."""
REQUESTS_KEPT = 2048
"""Of each kind of work, the newest."""
AGE_SECONDS = 4 * 3600.0
WORKS_KEPT = 64
"""Kinds of work, those that were asked for last."""


@dataclass(frozen=True, slots=True)
class Advice:
    """The mode to use for a batch bucket. `speedup` is over `baseline`; `crossover` is eager's.

    `index`: the kernel share of the workload's main phase; `bound`: its class, None where the interval allows
    several.
    """

    mode: str
    reason: str
    bound: str | None
    index: float | None
    crossover: float | None
    baseline: str
    speedup: Interval
    state: State
    beats_baseline: bool


class ServedRequests(Listener):
    """What served requests took, by the work that they did, and the kernel share of the main phase.

    Requests that were profiled, sampled or merged with others are left out. `observed` counts the others.
    """

    def __init__(self, workload: Workload = GENERATE) -> None:
        self._workload = workload
        self.observed = 0
        self._newest_seconds = 0.0
        self._served: OrderedDict[Work, deque[ServedRequest]] = OrderedDict()
        self._sums: dict[tuple[str, int], tuple[float, float]] = {}
        self._sampled: dict[tuple[str, int], Interval] = {}

    def observe(self, timing: RequestTiming) -> None:
        outcome, engine = timing.outcome, timing.engine
        if timing.slowed or (engine.shared is not None and not engine.shared.alone):
            return
        self.observed += 1
        mode, bucket, main = timing.job.mode, outcome.batch_bucket, getattr(engine, self._workload.main)
        kernel, dispatch = main.kernel_seconds, main.dispatch_seconds
        if kernel is not None and dispatch is not None and engine.dispatch_source != "attached":
            kernels, dispatches = self._sums.get((mode, bucket), (0.0, 0.0))
            self._sums[mode, bucket] = kernels + kernel, dispatches + dispatch
        work = _work_of(timing)
        served = self._served.setdefault(work, deque(maxlen=REQUESTS_KEPT))
        self._served.move_to_end(work)
        if len(self._served) > WORKS_KEPT:
            self._served.popitem(last=False)
        self._newest_seconds = max(self._newest_seconds, engine.done_ns / 1e9)
        served.append(ServedRequest(mode, engine.done_ns / 1e9, timing.compared_seconds))

    def mode(self, status: ModeStatus) -> None:
        for split in status.splits:
            if split.phase == self._workload.main:
                share, low, high = (1 - end for end in (split.dispatch_share, split.high, split.low))
                samples = split.newest.total
                self._sampled[status.mode, split.batch] = Interval(share, low, high, samples)

    def advise(
        self,
        batch_size: int,
        buckets: Sequence[int],
        modes: Sequence[str],
        confidence: float = CONFIDENCE,
        least_rounds: int = MINIMUM_ROUNDS,
    ) -> Advice:
        """The best of `modes` (in the ladder's order, simplest first) for a batch of `batch_size`.

        By `choice.choose` over the rounds of one kind of work: that with the most, else the newest. Raises
        NotMeasured, naming what to run, for fewer than two modes or `least_rounds` rounds.
        """
        if len(modes) < 2:
            raise NotMeasured(
                "advice compares modes, of which fewer than two are ready here: wait, or add to --modes"
            )
        bucket = min(size for size in buckets if size >= batch_size)
        found = {
            work: aligned_rounds(self._recent(served), modes)
            for work, served in reversed(self._served.items())
            if work.bucket == bucket
        }
        work = max(found, key=lambda work: len(found[work][modes[0]]), default=None)
        rounds = 0 if work is None else len(found[work][modes[0]])
        if work is not None and rounds >= least_rounds and (choice := choose(found[work], confidence)):
            return self._answer(work, choice, found[work], buckets)
        raise NotMeasured(self._remedy(batch_size, bucket, modes, rounds))

    def _recent(self, served: Iterable[ServedRequest]) -> Iterator[ServedRequest]:
        oldest = self._newest_seconds - AGE_SECONDS
        return (request for request in served if request.ended_seconds >= oldest)

    def _remedy(self, batch_size: int, bucket: int, modes: Sequence[str], rounds: int) -> str:
        works = [served for work, served in self._served.items() if work.bucket == bucket]
        seen = {request.mode for served in works for request in self._recent(served)}
        missing = [mode for mode in modes if mode not in seen]
        why = f"no request ran in {', '.join(missing)}"
        if not missing:
            together = f"all modes did the same work within {WINDOW_SECONDS:.0f} s"
            why = f"not comparable: {together} in {rounds} of the {MINIMUM_ROUNDS} rounds needed"
        prompts = "1 prompt" if batch_size == 1 else f"{batch_size} prompts"
        if not self._workload.tokens:
            prompts = f'"batch_size": {batch_size}'
        return (
            f"at batch {batch_size} (bucket {bucket}) {why}; POST /v1/compare with {prompts} and "
            f'"repeats": {MINIMUM_ROUNDS}, or run a sweep'
        )

    def _answer(
        self, work: Work, choice: Choice, rounds: Mapping[str, Rounds], buckets: Sequence[int]
    ) -> Advice:
        eager = {size: share.value for size in buckets if (share := self._share(EAGER, size))}
        turn = crossover(eager)
        index = self._share(choice.ship, work.bucket)
        classes = () if index is None else bounds_within(index)
        speedup = compare(rounds[choice.baseline], rounds[choice.ship]).speedup
        return Advice(
            mode=choice.ship,
            reason=_reason(work, choice, speedup, self._why(work.bucket, rounds)),
            bound=classes[0] if len(classes) == 1 else None,
            index=None if index is None else index.value,
            crossover=turn.batch if turn.where == "at" else None,
            baseline=choice.baseline,
            speedup=speedup,
            state=choice.state,
            beats_baseline=choice.beats_baseline,
        )

    def _share(self, mode: str, bucket: int) -> Interval | None:
        """Of the main phase: by the newest samples, else over all requests where it is measured."""
        index = device_bound_index(*self._sums.get((mode, bucket), (None, None)))
        measured = None if index is None else Interval(index, index, index, 1)
        return self._sampled.get((mode, bucket), measured)

    def _why(self, bucket: int, modes: Collection[str]) -> str | None:
        """What a better mode can gain: by the best plain mode that is sampled, else eager's class."""
        for mode in (PLAIN, EAGER):
            if mode in modes and (share := self._sampled.get((mode, bucket))):
                value, low, high = (100 * (1 - end) for end in (share.value, share.high, share.low))
                dispatch = f"dispatch is {value:.0f} % ({low:.0f} to {high:.0f} %) of an `{mode}` step"
                times = headroom(share.value)
                gain = f": without it the step would be {times:.1f} times as fast" if times else ""
                return dispatch + gain
        eager = self._share(EAGER, bucket)
        if eager is None:
            return None
        dispatch = f"{1 - eager.value:.0%} of dispatch and kernel time is dispatch"
        return f"of eager's {self._workload.main} {dispatch}: {bound_in_words(eager)}"


def headroom(kernel_share: float) -> float | None:
    """How many times as fast a step would be without its dispatch; None where it is all dispatch."""
    return 1 / kernel_share if kernel_share > 0 else None


def _reason(work: Work, choice: Choice, speedup: Interval, why: str | None) -> str:
    margin = f"{100 * (MARGIN - 1):.0f} %"
    if choice.state == "equivalent":
        reason = f"no mode is faster than {choice.baseline} by more than {margin}"
    else:
        times = f"{speedup.value:.2f} (95 % interval {speedup.low:.2f} to {speedup.high:.2f})"
        reason = f"{work.compared} is {times} times as fast as {choice.baseline}'s"
    if choice.unresolved:
        reason += f"; not resolved: {', '.join(choice.unresolved)} may be the right one"
    elif choice.ship not in (choice.fastest, choice.baseline):
        reason += f"; {choice.fastest} is within {margin} of it, and less simple"
    return reason if why is None else f"{reason}; {why}"


WINDOW_SECONDS = 120.0
"""Requests of one round end within this time of each other, so that they met about the same machine."""


@dataclass(frozen=True, slots=True)
class Work:
    """What requests have in common whose durations can be compared; `compared` is in words."""

    bucket: int
    compared: str


def _work_of(timing: RequestTiming) -> Work:
    job, engine, bucket = timing.job, timing.engine, timing.outcome.batch_bucket
    if job.forward is None:
        tokens = f"{engine.decode.steps + 1} tokens after {engine.padded_prompt_tokens} of padded prompt"
        return Work(bucket, f"a whole request ({tokens}, {_options_of(job)})")
    inputs = "its own inputs" if job.forward.inputs is None else "inputs that were sent"
    what = "a whole request" if timing.calls_seconds is None else "a call"
    return Work(bucket, f"{what} ({job.forward.calls} calls in a row on {inputs})")


def _options_of(job: Job) -> str:
    """How `job` chooses, ends and sends its tokens: 'sampled, top-k, streamed'."""
    samples = job.temperature > 0
    options = {
        "top-k": samples and job.top_k is not None,
        "top-p": samples and job.top_p is not None,
        "stop strings": bool(job.stop),
        "streamed": job.stream,
    }
    named = [name for name, is_set in options.items() if is_set]
    return ", ".join(["sampled" if samples else "greedy", *named])


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """When a request ended, in seconds on a monotonic clock, and how long it took without its queue."""

    mode: str
    ended_seconds: float
    seconds: float


def aligned_rounds(requests: Iterable[ServedRequest], modes: Collection[str]) -> dict[str, dict[int, float]]:
    """By mode and round, the median seconds of `requests`, which come in the order of their ends.

    A round is the shortest stretch since the last one in which every mode ended a request, all within
    WINDOW_SECONDS: modes that took turns make many, modes that ran one after the other at most one.
    """
    rounds: dict[str, dict[int, float]] = {mode: {} for mode in modes}
    window = deque[ServedRequest]()
    present = Counter[str]()
    number = 0
    for request in requests:
        if request.mode not in rounds:
            continue
        window.append(request)
        present[request.mode] += 1
        while request.ended_seconds - window[0].ended_seconds > WINDOW_SECONDS:
            present[window.popleft().mode] -= 1
        if all(present[mode] for mode in modes):
            number += 1
            for mode in modes:
                rounds[mode][number] = median(one.seconds for one in window if one.mode == mode)
            window.clear()
            present.clear()
    return rounds


log = logging.getLogger("launchbound")

REFRESH_SECONDS = 5.0
"""Between two comparisons of served requests, each of which holds the event loop for milliseconds."""


def comparison(number: int) -> tuple[int, float]:
    """The rounds, and the confidence, of the `number`-th comparison of served requests, from 0 on.

    8 rounds and their doublings, at 1 − 0.05 / ((k + 1)(k + 2)): these errors add up to 5 %, however many.
    """
    return MINIMUM_ROUNDS << number, 1 - (1 - CONFIDENCE) / ((number + 1) * (number + 2))


Source = Literal["sweep", "live", "default"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asked for, and the mode of the ladder that runs it; `reason` where they differ."""

    requested: str
    mode: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Advised:
    mode: str
    source: Source
    reason: str


class AutoMode(Listener):
    """Picks by batch bucket: what a sweep advises, else what served requests do, else `inference_mode`.

    A sweep's advice counts only for an engine like the one swept; `unused` is why it does not.
    """

    def __init__(
        self, modes: Sequence[str], buckets: Sequence[int], advice: SweepAdvice | None, served: ServedRequests
    ) -> None:
        self.default = PLAIN if PLAIN in modes else modes[0]
        self._modes = modes
        self.advice = advice
        self.unused: str | None = None
        self._buckets = buckets
        self._served = served
        self._live: dict[int, Advised] = {}
        self._comparisons: dict[tuple[int | str, ...], tuple[int, float]] = {}
        self._refreshed = monotonic()
        self._next_bucket = cycle(buckets)
        self._compared_after: dict[int, int] = {}
        self._advice_checked = False
        self.advised: dict[int, Advised] = {}
        """By batch bucket, ascending."""
        self._settle()

    def pick(self, batch_size: int, ready: Collection[str]) -> Asked:
        """The advised mode where it is in `ready`, else the default, else the first mode that is ready."""
        advised = self.advised[next(size for size in self._buckets if size >= batch_size)]
        mode = next((one for one in (advised.mode, self.default, *self._modes) if one in ready), self.default)
        if mode == advised.mode:
            return Asked(AUTO, mode, advised.reason)
        missed = [one for one in dict.fromkeys((advised.mode, self.default)) if one != mode]
        missing = f"{' and '.join(missed)} {'is' if len(missed) == 1 else 'are'} not ready"
        return Asked(AUTO, mode, f"{missing}, so {mode} runs meanwhile; {advised.reason}")

    def refresh(self, ready: Sequence[str]) -> None:
        """Compare the served requests of one bucket, every REFRESH_SECONDS; called where no request runs."""
        if monotonic() - self._refreshed < REFRESH_SECONDS:
            return
        bucket = next(self._next_bucket)
        if self._compared_after.get(bucket) != self._served.observed:
            self._compared_after[bucket] = self._served.observed
            self.learn(bucket, ready)
        self._refreshed = monotonic()

    def learn(self, bucket: int, ready: Sequence[str]) -> None:
        """Take in what requests of `bucket` advise for the modes `ready`, at the rounds of `comparison`.

        What is not resolved changes nothing, unless the mode surely beats the baseline. After AGE_SECONDS,
        and for other modes, comparisons are counted anew.
        """
        number, began = self._comparisons.get((bucket, *ready), (0, monotonic()))
        if monotonic() - began > AGE_SECONDS:
            number, began = 0, monotonic()
        rounds, confidence = comparison(number)
        try:
            found = self._served.advise(bucket, self._buckets, ready, confidence, rounds)
        except NotMeasured:
            return
        self._comparisons[bucket, *ready] = number + 1, began
        if found.state == "not resolved" and not found.beats_baseline:
            return
        reason = f"advised by the {found.speedup.samples} rounds of requests served here: {found.reason}"
        self._live[bucket] = Advised(found.mode, "live", reason)
        self._settle()

    def engine(self, status: EngineStatus) -> None:
        """At the first status: see whether a sweep's advice is of such an engine."""
        if self.advice is None or self._advice_checked:
            return
        self._advice_checked = True
        self.unused = self.advice.unlike(status)
        self._settle()
        if self.unused is not None:
            log.warning("auto: the advice of %s is not used: %s", self.advice.name, self.unused)
            return
        own = [f"{one.mode} at batch {size}" for size, one in self.advised.items() if one.source == "sweep"]
        log.info("auto runs what %s advises: %s", self.advice.name, ", ".join(own) or "nothing")

    def _settle(self) -> None:
        self.advised = {bucket: self._advised(bucket) for bucket in self._buckets}

    def _advised(self, bucket: int) -> Advised:
        advice = self.advice
        if advice is None:
            no_sweep = "no sweep advises on it"
        elif self.unused is not None:
            no_sweep = f"the advice of {advice.name} is not used: {self.unused}"
        else:
            for one in advice.resolved:
                if one.batch_size == bucket:
                    reason = f"advised by {advice.name} at batch {bucket}: {one.reason}"
                    return Advised(one.mode, "sweep", reason)
            no_sweep = f"{advice.name} has no answer for it"
        live = self._live.get(bucket)
        if live is not None:
            return Advised(live.mode, "live", f"{no_sweep}; {live.reason}" if self.unused else live.reason)
        why = f"{no_sweep}, and too few requests that can be compared were served"
        return Advised(self.default, "default", f"nothing advises on batch bucket {bucket}: {why}")
