"""Runs one job in its mode, under the profiler where it is due, and turns failures into problems."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter_ns

from service.engine.job import ALL_PHASES, JobResult, JobWork
from service.engine.profiler import RequestProfiler
from service.engine.step_shares import BACKGROUND_PER_SECOND, Key, StepShares
from service.engine.text import JobError
from service.engine.warmup import ConfiguredMode, Warmup
from service.measure.cpu_sampler import SAMPLES_PER_SECOND
from service.records import Doing, Job, OutcomeKind, Problem, SampleCounts
from service.step.device import free_memory, is_device_lost, is_out_of_memory, reason
from service.step.graphs import is_recompile_error
from service.step.meters import Meter

PIECE_SECONDS = 1800.0
"""How long one piece of the warm-up may take, such as the compilation of one callable."""

PROFILING = Doing(what="profiling a request", limit_seconds=PIECE_SECONDS)


@dataclass(frozen=True, slots=True)
class JobRunner:
    """Runs jobs one at a time; whatever one raises ends that job and not the engine."""

    generator: JobWork
    profiler: RequestProfiler
    shares: StepShares
    meter: Meter
    warmup: Warmup
    announce: Callable[[Doing], None]

    def warm(self) -> None:
        """Run jobs of our own in one mode."""
        for configured in list(self.warmup.ready().values())[:1]:
            for job in self.generator.warm_up_jobs(configured.mode.name):
                try:
                    self.generator.run(job, configured.steps, JobResult(), self.meter)
                except Exception as error:
                    if is_device_lost(error):
                        raise
                    print(f"launchbound engine: a request of the warm-up failed: {error}", file=sys.stderr)
                    free_memory(error)

    def run(self, job: Job, configured: ConfiguredMode, result: JobResult) -> None:
        """Run `job`, sampled or profiled, and record everything in `result`, a failure too."""

        def generate(meter: Meter) -> None:
            self.generator.run(job, configured.steps, result, meter)

        try:
            if job.sample and self.shares.missing is None:
                began_ns = perf_counter_ns()
                self.generator.run(self.generator.lead(job), configured.steps, JobResult(), self.meter)
                # Not a part of what is sampled: the engine was busy with something else.
                result.taken_ns = perf_counter_ns()
                result.queue_ns += result.taken_ns - began_ns
                result.sampled = True
                self._sampled(job, result, generate, SAMPLES_PER_SECOND)
            elif not self.profiler.is_due(job):
                self._sampled(job, result, generate, BACKGROUND_PER_SECOND)
            else:
                self.announce(PROFILING)
                self.shares.rest()
                result.profile = self.profiler.profile(job, result, self.meter, generate)
                if kernel_times := self.profiler.kernel_times.of_mode(job.mode):
                    self.warmup.update(configured, kernel_times=kernel_times)
        except Exception as error:  # noqa: BLE001 - it fails this job alone
            self.failed(configured, error, [result])

    def _sampled(
        self, job: Job, result: JobResult, generate: Callable[[Meter], None], samples_per_second: float
    ) -> None:
        """`generate` with its steps sampled; the samples are in the readings of `result`, failed or not."""
        found: dict[Key, SampleCounts] = {}
        try:
            with self.shares.sampling(samples_per_second) as found:
                generate(self.meter)
        finally:
            for phase in ALL_PHASES:
                result.of(phase).samples = found.get((job.mode, phase, result.bucket))

    def failed(self, configured: ConfiguredMode, error: Exception, results: Iterable[JobResult]) -> None:
        """Record in `results` what a step, or a job's arguments, raised; the loss of the device is raised."""
        if is_device_lost(error):
            raise error
        results = list(results)
        kind: OutcomeKind = "error"
        problem = Problem(type="internal", message=reason(error))
        if isinstance(error, JobError):
            problem = error.problem
        elif is_out_of_memory(error):
            smaller = next(iter(results)).workload.smaller
            message = f"the device is out of memory: send {smaller} ({error})"
            kind, problem = "oom", Problem(type="out_of_memory", message=message)
            free_memory(error)
        elif is_recompile_error(error):
            self.warmup.update(configured, recompiles=configured.status.recompiles + 1)
        for result in results:
            result.fail(problem, kind)


def not_ready(name: str, modes: Mapping[str, ConfiguredMode]) -> Problem:
    """Why mode `name` cannot serve now, and which modes can."""
    states = {other: configured.status.state for other, configured in modes.items()}
    ready = [other for other, state in states.items() if state == "ready"]
    message = (
        f"mode '{name}' is {states.get(name, 'not configured')}; ready: {', '.join(ready) or 'none yet'}"
    )
    return Problem(type="mode_not_ready", message=message, param="mode")
