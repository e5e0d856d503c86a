"""Samples the engine's thread while jobs run, and keeps what the newest samples say of each step."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from time import perf_counter_ns

from service.measure.cpu_sampler import SAMPLES_PER_SECOND, CpuSampler, Place, SamplerError
from service.records import SIDES, Phase, SampleCounts, StepSplit
from service.statistics.boundedness import dispatch_share
from service.step.buffers import StepInputs, lead_steps
from service.step.callables import AnyStep
from service.step.meters import SIZE_BITS, StepLabels

BACKGROUND_PER_SECOND = 53
"""Samples of the traffic as it is. A prime, so that they keep step with nothing."""

NEWEST = 2000
"""Samples of one step that its share rests on, so that it follows the machine."""

ENOUGH = 100
"""Samples of a job's own steps that give it a split of its own; with fewer it has that of the newest."""

BURST_SECONDS = 0.05
"""Of each step, at warm-up: so that the first requests have a share, if a rough one."""

NUMBER_MASK = (1 << SIZE_BITS) - 1

Key = tuple[str, Phase, int]
"""Mode, phase and bucket."""


class StepShares:
    """Of all steps that `label` was told. `missing` is why nothing is sampled; None where it is.

    `apart`: a step's sizes are not alike, as those of a module: no share is of several, and `splits` are of
    size 0, the first.
    """

    def __init__(self, folder: Path, missing: str | None = None, apart: bool = False) -> None:
        self.missing = missing
        self._apart = apart
        self._sampler: CpuSampler | None = None
        if missing is None:
            try:
                self._sampler = CpuSampler(folder)
            except SamplerError as error:
                self.missing = str(error)
        self.labels = StepLabels(self._sampler.label if self._sampler else None)
        self._sampling = False
        self._keys: list[Key] = []
        self._of_key: dict[Key, _StepSamples] = defaultdict(_StepSamples)
        self._of_size: dict[tuple[Key, int], _StepSamples] = defaultdict(_StepSamples)

    def add(self, mode: str, steps: Mapping[tuple[Phase, int], AnyStep]) -> None:
        """Sample the steps of `mode` from now on."""
        for (phase, bucket), step in steps.items():
            self.labels.add(step)
            self._keys.append((mode, phase, bucket))

    @contextmanager
    def sampling(
        self, samples_per_second: float = BACKGROUND_PER_SECOND
    ) -> Iterator[dict[Key, SampleCounts]]:
        """Within: the steps that this thread runs are sampled. What is yielded has at the end the samples
        taken within. It stays empty where nothing is sampled, where some samples were lost, and in the
        background with fewer than ENOUGH.

        In the background sampling goes on until `rest`: to start, stop and count for every request costs
        more than the samples do.
        """
        found: dict[Key, SampleCounts] = {}
        if self._sampler is None:
            yield found
            return
        faster = samples_per_second > BACKGROUND_PER_SECOND
        if faster:
            self.rest()
        if not self._sampling:
            self.labels.take()  # calls from before: under the profiler they are slow
            self._sampling = True
            self._sampler.start(samples_per_second)
        before = self._sampler.count
        try:
            yield found
        finally:
            own = self._sampler.count - before
            if faster:
                self._sampler.stop()
            if faster or own >= ENOUGH:
                found |= self._collect(own, slowed=faster)
            self._sampling = not faster

    def rest(self) -> None:
        """Sample no more until the next `sampling`."""
        if self._sampler is not None and self._sampling:
            self._sampler.stop()
            self.collect()
            self._sampling = False

    def collect(self) -> None:
        if self._sampler is not None and self._sampling:
            self._collect(0, slowed=False)

    def _collect(self, own: int, slowed: bool) -> dict[Key, SampleCounts]:
        """Count all samples so far, and return the last `own` of them; empty where some were lost. `slowed`:
        by faster sampling than in the background.
        """
        assert self._sampler is not None
        samples = self._sampler.take()
        counted = self._counted(samples)
        for (key, size), counts in counted.items():
            self._of_size[key, size].add(counts)
        usual = {one: counts for one, counts in counted.items() if not (self._apart and one[1])}
        for key, counts in _of_all_sizes(usual).items():
            self._of_key[key].add(counts)
        self._add_walls(slowed)
        if self._sampler.lost or not own:
            return {}
        return _of_all_sizes(self._counted(samples[-own:]))

    def newest(self, mode: str, phase: Phase, bucket: int, size: int | None = None) -> SampleCounts | None:
        """The samples that the share of a step rests on now: of steps of that `size` (`step_size`), if they
        have enough or sizes are `apart`, else of all sizes. None where there are none.
        """
        key = mode, phase, bucket
        of_size = self._of_size[key, size].newest if size is not None else SampleCounts()
        own = of_size.kernel + of_size.host >= ENOUGH or (self._apart and size is not None)
        counts = of_size if own else self._of_key[key].newest
        return counts if counts.kernel + counts.host else None

    def splits(self, mode: str) -> list[StepSplit]:
        keys = [key for key in self._keys if key[0] == mode]
        return [split for key in keys if (split := self._of_key[key].split(key[1], key[2])) is not None]

    def burst(
        self, steps: Mapping[tuple[Phase, int], AnyStep], inputs: Mapping[int, StepInputs]
    ) -> Iterator[None]:
        """Sample each of `steps` for BURST_SECONDS in each size that is compiled for; yields after each."""
        if self._sampler is None:
            return
        for (phase, bucket), step in steps.items():
            own = inputs[bucket]
            for arguments in (own.measured(phase), *islice(own.shapes(phase), 1, own.apart)):
                for _ in range(lead_steps(phase)):
                    step(*arguments)
                with self.sampling(SAMPLES_PER_SECOND):
                    ends_ns = perf_counter_ns() + BURST_SECONDS * 1e9
                    while perf_counter_ns() < ends_ns:
                        self.labels.call(step, arguments)
                yield

    def _counted(self, samples: list[tuple[int, Place]]) -> dict[tuple[Key, int], SampleCounts]:
        by_label: dict[int, Counter[str]] = {}
        for label, place in samples:
            by_label.setdefault(label, Counter())[place.side] += 1
        return {
            (self._keys[(label & NUMBER_MASK) - 1], label >> SIZE_BITS): SampleCounts(
                **{side: found[side] for side in SIDES}
            )
            for label, found in by_label.items()
        }

    def _add_walls(self, slowed: bool) -> None:
        """What the meters have timed since."""
        for label, (steps, wall_ns) in self.labels.take().items():
            self._of_key[self._keys[label - 1]].timed(steps, wall_ns / 1e9, slowed)


def _of_all_sizes(counted: Mapping[tuple[Key, int], SampleCounts]) -> dict[Key, SampleCounts]:
    found: dict[Key, SampleCounts] = defaultdict(SampleCounts)
    for (key, _), counts in counted.items():
        found[key] += counts
    return dict(found)


class _StepSamples:
    """The samples of one step, in blocks, and the wall time of its newest calls."""

    def __init__(self) -> None:
        self._blocks: deque[SampleCounts] = deque()
        self.newest = SampleCounts()
        self._all = SampleCounts()
        self._step_seconds: float | None = None
        self._estimated = True

    def add(self, counts: SampleCounts) -> None:
        self._all += counts
        self.newest += counts
        if self._blocks and self._blocks[-1].total < NEWEST // 20:
            counts += self._blocks.pop()
        self._blocks.append(counts)
        while self.newest.total - self._blocks[0].total >= NEWEST:
            self.newest -= self._blocks.popleft()

    def timed(self, steps: int, wall_seconds: float, slowed: bool) -> None:
        """`steps` calls took `wall_seconds`; the mean follows the newest requests. Calls that sampling has
        `slowed` count only where no others did.
        """
        mean = wall_seconds / steps
        if self._step_seconds is None or (self._estimated and not slowed):
            self._step_seconds, self._estimated = mean, slowed
        elif not slowed:
            self._step_seconds += 0.2 * (mean - self._step_seconds)

    def split(self, phase: Phase, bucket: int) -> StepSplit | None:
        """None without a sample of kernel or host."""
        newest = self.newest
        share = dispatch_share(newest)
        if share is None or self._step_seconds is None:
            return None
        return StepSplit(
            phase=phase,
            batch=bucket,
            dispatch_share=share.value,
            low=share.low,
            high=share.high,
            step_seconds=self._step_seconds,
            newest=newest,
            all=self._all,
        )
