"""Runs one job of a user's module: its inputs, then so many calls in a row."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping
from time import perf_counter_ns
from typing import Any

import msgspec
import torch
from torch import Tensor

from models.workload import ModuleError
from service.engine.inbox import Inbox, LocalInbox, local_job
from service.engine.job import JobEnded, JobResult, JobWatch
from service.engine.text import JobError
from service.forward_records import ForwardWork
from service.records import Job, Phase
from service.step.buffers import LEAD_STEPS, ModuleArguments
from service.step.callables import AnyStep
from service.step.meters import Meter, Readings
from service.step.module_inputs import ModuleInputs, ShapeInputs, WrongInputs
from service.step.module_parity import CallParity
from service.step.module_step import as_json, leaves

LEAD_SHARE = 8
"""At most one call in so many is not timed."""

MOST_OUTPUT_NUMBERS = 1_000_000
"""In an answer: as JSON about 20 MB, which the engine writes while nothing else runs."""


def lead_calls(calls: int) -> int:
    """Untimed calls before `calls` timed ones: after about ten, code and weights lie in the caches. A single
    call has none and is timed as it comes.
    """
    return min(LEAD_STEPS, calls // LEAD_SHARE)


class Forwarder:
    """Runs one job at a time, on the static inputs of its batch size."""

    def __init__(
        self,
        inputs: Mapping[int, ModuleInputs],
        device: torch.device,
        inbox: Inbox | LocalInbox,
        parity: CallParity,
    ) -> None:
        self._inputs = inputs
        self._parity = parity
        self._watch = JobWatch(inbox)
        self._waits = device.type == "cuda"
        # Copied to the host behind each call: what is waited for, and what separates two steps in a trace.
        self._mark = torch.zeros(1, dtype=torch.int64, device=device)

    def run(
        self, job: Job, steps: Mapping[tuple[Phase, int], AnyStep], result: JobResult, meter: Meter
    ) -> None:
        """Run `job` with the steps of its mode, recording everything in `result` as it happens.

        Raises JobError where its inputs are not what the module is called on, and whatever torch raises.
        """
        work = job.forward
        if work is None:
            raise JobError("invalid_request", "a module is called on inputs, not on prompts: use forward")
        began = perf_counter_ns()
        inputs, found = self._made(work)
        made = perf_counter_ns()
        inputs.fill(found, work.seed if work.sent is None else None)
        feed_ns = perf_counter_ns() - made
        result.tokenise_ns = made - began + (0 if self._waits else feed_ns)
        result.bucket, result.size = work.batch_size, inputs.arguments.number
        try:
            step = steps["forward", work.batch_size]
            output = self._call(job, work.calls, step, inputs.arguments, result, meter, feed_ns)
            if work.outputs:
                result.forward_outputs = _encoded(output)
            if work.compare:
                result.parity = self._parity.of_call(output, inputs.arguments)
        except JobEnded as end:
            result.kind = end.kind

    def _made(self, work: ForwardWork) -> tuple[ShapeInputs, list[Any] | None]:
        """The static inputs, and what to fill them with; None: they hold it. Raises JobError."""
        if work.batch_size not in self._inputs:
            sizes = ", ".join(map(str, sorted(self._inputs)))
            raise JobError(
                "invalid_request",
                f"a batch of {work.batch_size} is not served: send one of {sizes}, or start the service with "
                "LAUNCHBOUND_BATCH_SIZES",
                work.sent or "batch_size",
            )
        try:
            inputs = self._inputs[work.batch_size].of(work.size)
            if work.inputs is not None:
                return inputs, inputs.of_json(work.inputs)
            if work.safetensors is not None:
                return inputs, inputs.of_safetensors(work.safetensors)
            return inputs, inputs.of_seed(work.seed)
        except WrongInputs as error:
            raise JobError("invalid_request", str(error), error.field) from error
        except ModuleError as error:
            raise JobError("invalid_request", str(error), "seed") from error

    def _call(
        self,
        job: Job,
        calls: int,
        step: AnyStep,
        arguments: ModuleArguments,
        result: JobResult,
        meter: Meter,
        feed_ns: int,
    ) -> Any:  # noqa: ANN401 - whatever a module returns
        """What the last of `calls` calls returns.

        On CUDA the next is launched before one has ended, as a program does that does not look at each
        result: the device does not wait for the host.
        """
        readings, check = result.forward, self._watch.check
        output: Any = None
        running = None
        before = resource.getrusage(resource.RUSAGE_THREAD)
        try:
            # Not under the profiler, in whose trace every step has a mark.
            lead = 0 if job.profile else lead_calls(calls)
            for _ in range(lead):
                check(job, perf_counter_ns())
                step(*arguments)
            if lead and self._waits:
                meter.fetch(meter.copy(self._mark), Readings())
            before = resource.getrusage(resource.RUSAGE_THREAD)
            for _ in range(calls):
                check(job, perf_counter_ns())
                output = meter.run(step, arguments, readings)
                if self._waits:
                    readings.feed.append(feed_ns)
                    feed_ns = 0
                    launched = meter.copy(self._mark)
                    if running is not None:
                        meter.fetch(running, readings)
                    running = launched
            return output
        finally:
            if running is not None:
                meter.fetch(running, readings)
            result.ended_ns = perf_counter_ns()
            after = resource.getrusage(resource.RUSAGE_THREAD)
            result.involuntary_switches = after.ru_nivcsw - before.ru_nivcsw
            readings.minor_faults = after.ru_minflt - before.ru_minflt

    def lead(self, job: Job) -> Job:
        """Runs before `job`, which is sampled: a call right after another mode's takes longer."""
        assert job.forward is not None
        return msgspec.structs.replace(
            job, forward=msgspec.structs.replace(job.forward, calls=1, outputs=False, compare=False)
        )

    def warm_up_jobs(self, mode: str) -> Iterator[Job]:
        """One at every batch size and size, so that the first of a client's finds what it needs."""
        for batch, inputs in self._inputs.items():
            for size in inputs.by_size:
                work = ForwardWork(batch_size=batch, size=size, calls=2)
                yield local_job("warm-up", mode, [], 0, forward=work)

    def sizes(self, result: JobResult) -> dict[Phase, int]:
        return {"forward": result.size}


def _encoded(output: Any) -> bytes:  # noqa: ANN401 - whatever a module returns
    """Raises JobError for more numbers than an answer holds."""
    numbers = sum(leaf.numel() for _, leaf in leaves(output, "output") if isinstance(leaf, Tensor))
    if numbers > MOST_OUTPUT_NUMBERS:
        raise JobError(
            "invalid_request",
            f"outputs of {numbers:,} numbers are over the limit of {MOST_OUTPUT_NUMBERS:,}: "
            "leave outputs out, or send a smaller batch",
            "outputs",
        )
    return as_json(output)
