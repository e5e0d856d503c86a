"""`auto`: the mode that runs a request, by what a sweep or this instance's own requests advise."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Literal

from service.front.advice import ServedRequests
from service.front.errors import NotMeasured
from service.front.sweep_advice import SweepAdvice
from service.protocol.modes import AUTO
from service.protocol.status import EngineStatus, ModeStatus

log = logging.getLogger("launchbound")

PLAIN = "inference_mode"
"""Where nothing advises: the best mode without a compiler."""

REFRESH_SECONDS = 5.0
"""Between two looks at the requests served, each of which compares those of one batch bucket.

A look at several thousand requests takes milliseconds, in which the front answers nobody.
"""

Source = Literal["sweep", "live", "default"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asked for, and the mode of the ladder that runs it; `reason` where they differ."""

    requested: str
    mode: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Advised:
    """The mode for one batch bucket, who advises it, and why."""

    mode: str
    source: Source
    reason: str


class AutoMode:
    """Picks by batch bucket: what a sweep advises, else what served requests do, else `inference_mode`.

    A listener of the engine client: a sweep's advice counts only for an engine like the one swept, and
    `unused` is why it does not. What requests have advised is kept when later ones would not suffice, since
    `auto` itself runs one mode alone.
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
        self._refreshed = monotonic()
        self._turn = 0
        self._looked: dict[int, int] = {}
        self._told = False
        self.advised: dict[int, Advised] = {}
        """By batch bucket, ascending."""
        self._settle()

    def pick(self, batch_size: int, ready: Collection[str]) -> Asked:
        """The mode for a batch that fits the largest bucket: the advised one where it is in `ready`, else the
        default, else the first of the modes that is. The default where none is.
        """
        advised = self.advised[next(size for size in self._buckets if size >= batch_size)]
        mode = next((one for one in (advised.mode, self.default, *self._modes) if one in ready), self.default)
        if mode == advised.mode:
            return Asked(AUTO, mode, advised.reason)
        missed = [one for one in dict.fromkeys((advised.mode, self.default)) if one != mode]
        missing = f"{' and '.join(missed)} {'is' if len(missed) == 1 else 'are'} not ready"
        return Asked(AUTO, mode, f"{missing}, so {mode} runs meanwhile; {advised.reason}")

    def refresh(self, ready: Sequence[str]) -> None:
        """Look at the requests served, at one bucket every REFRESH_SECONDS; called where no request runs.

        Where none was served since that bucket's last look there is nothing to see: an idle front rests.
        """
        if monotonic() - self._refreshed < REFRESH_SECONDS:
            return
        bucket = self._buckets[self._turn % len(self._buckets)]
        self._turn += 1
        if self._looked.get(bucket) != self._served.observed:
            self._looked[bucket] = self._served.observed
            self.learn(bucket, ready)
        self._refreshed = monotonic()

    def learn(self, bucket: int, ready: Sequence[str]) -> None:
        """Take in what requests of `bucket` advise for the modes `ready`; too few change nothing."""
        try:
            found = self._served.advise(bucket, self._buckets, ready)
        except NotMeasured:
            return
        reason = f"advised by the {found.samples} rounds of requests served here: {found.reason}"
        self._live[bucket] = Advised(found.mode, "live", reason)
        self._settle()

    def engine(self, status: EngineStatus) -> None:
        """The engine told of itself: the first time, whether a sweep's advice is of such a one; it is logged.

        Later ones run on the same device, with the same settings.
        """
        if self.advice is None or self._told:
            return
        self._told = True
        self.unused = self.advice.unlike(status)
        self._settle()
        if self.unused is not None:
            log.warning("auto: the advice of %s is not used: %s", self.advice.name, self.unused)
            return
        own = [
            f"{one.mode} at batch {bucket}" for bucket, one in self.advised.items() if one.source == "sweep"
        ]
        other = [str(bucket) for bucket, one in self.advised.items() if one.source != "sweep"]
        left_out = f"; it has no answer for batch {', '.join(other)}" if other else ""
        log.info("auto runs what %s advises: %s%s", self.advice.name, ", ".join(own) or "nothing", left_out)

    def mode(self, status: ModeStatus) -> None:
        """Which modes are ready is asked at each request."""

    def engine_lost(self) -> None:
        """The next engine tells of itself."""

    def _settle(self) -> None:
        self.advised = {bucket: self._advised(bucket) for bucket in self._buckets}

    def _advised(self, bucket: int) -> Advised:
        advice = self.advice
        no_sweep = "no sweep advises on it"
        if advice is not None and self.unused is not None:
            no_sweep = f"the advice of {advice.name} is not used: {self.unused}"
        elif advice is not None:
            own = next((one for one in advice.batches if one.batch_size == bucket), None)
            if own is not None:
                return Advised(own.mode, "sweep", f"advised by {advice.name} at batch {bucket}: {own.reason}")
            no_sweep = f"{advice.name} has no answer for it"
        live = self._live.get(bucket)
        if live is not None:
            return Advised(live.mode, "live", f"{no_sweep}; {live.reason}" if self.unused else live.reason)
        why = f"{no_sweep}, and too few requests that can be compared were served"
        return Advised(self.default, "default", f"nothing advises on batch bucket {bucket}: {why}")
