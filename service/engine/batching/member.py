"""One job that runs in a batch: its rows, its steps, and what it takes with it when it leaves."""

from __future__ import annotations

import resource
from dataclasses import dataclass, field

import torch
from torch import Tensor

from service.engine.batching.step_log import StepLog, Stretch
from service.engine.job_result import JobResult
from service.engine.text import Completions
from service.protocol.messages import Job
from service.step.sampling import Sampler


@dataclass(slots=True, eq=False)
class Member:
    """A job with its token ids in `prompts` and the `slots` of its rows, in the order of the prompts.

    `prefilled` has the prefill steps, which it shares with those that joined together with it; its decode
    steps are those of the batch's log from number `decode_begin` on. `usage` is the thread's when it joined.
    """

    job: Job
    result: JobResult
    prompts: list[list[int]]
    rows: Completions
    sampler: Sampler
    usage: resource.struct_rusage
    decode_begin: int
    slots: list[int] = field(default_factory=list)
    prefilled: StepLog = field(default_factory=StepLog)
    _places: tuple[list[int], Tensor] | None = None

    def places(self, device: torch.device) -> Tensor:
        """The rows of its logits, int64 [prompts] on `device`; copied there once, until they move."""
        if self._places is None or self._places[0] != self.slots:
            rows = torch.tensor(self.slots, pin_memory=device.type == "cuda")
            self._places = list(self.slots), rows.to(device, non_blocking=True)
        return self._places[1]

    def newest(self, decoded: StepLog) -> StepLog:
        """The log of its newest step."""
        return decoded if self.decode_begin < decoded.end else self.prefilled

    def leave(self, decoded: StepLog, ended_ns: int) -> LeftMember:
        """It has ended: what the thread used meanwhile goes into `result`; returns the steps that it had."""
        result = self.result
        result.ended_ns = ended_ns
        now = resource.getrusage(resource.RUSAGE_THREAD)
        result.involuntary_switches = now.ru_nivcsw - self.usage.ru_nivcsw
        result.decode.minor_faults = now.ru_minflt - self.usage.ru_minflt - result.prefill.minor_faults
        decode = decoded.stretch(self.decode_begin, decoded.end, ended_ns)
        begins = decode.begins
        prefill = self.prefilled.stretch(0, self.prefilled.end, begins[0] if begins else ended_ns)
        result.bucket = max([*prefill.buckets, *decode.buckets], default=result.bucket)
        return LeftMember(self.job, result, prefill, decode, now.ru_nivcsw)


@dataclass(frozen=True, slots=True)
class LeftMember:
    """A job that has left its batch, with its steps of both phases.

    `switches`: the involuntary switches of the engine's thread since it began.
    """

    job: Job
    result: JobResult
    prefill: Stretch
    decode: Stretch
    switches: int


def never_ran(job: Job, result: JobResult) -> LeftMember:
    """A job without steps, which its `result` tells why."""
    nothing = StepLog().stretch(0, 0, 0)
    return LeftMember(job, result, nothing, nothing, 0)
