"""Jobs of one mode that run together: they join between two steps, and leave as soon as they are complete."""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean
from time import perf_counter_ns

from service.engine.batching.joint_prefill import JointPrefill
from service.engine.batching.member import LeftMember, Member, never_ran
from service.engine.batching.queue import Queue
from service.engine.batching.round import Round, choose, new_round
from service.engine.batching.slots import Slots
from service.engine.batching.step_log import StepLog
from service.engine.generation import Generator
from service.engine.job_result import JobResult
from service.protocol.messages import Job, OutcomeKind, Phase
from service.step.buffers import copy_row
from service.step.callables import Step
from service.step.device_errors import is_device_lost
from service.step.meters import Meter
from service.step.sampling import Sampler

LOOKED_UP_STEPS = 8
"""So often those that wait are looked at, who may be cancelled or late by then."""


class Batch:
    """The jobs that run now. `left` is called with each that ends, whatever ends it; `failed` before that
    with what a job's arguments raised, or its text, or a step for all that were in it.

    What loses the device's context is raised by all methods that run something.
    """

    def __init__(
        self,
        generator: Generator,
        channel: Queue,
        steps: Mapping[tuple[Phase, int], Step],
        meter: Meter,
        left: Callable[[LeftMember], None],
        failed: Callable[[Exception, list[JobResult]], None],
    ) -> None:
        self._generator = generator
        self._channel = channel
        self._steps = steps
        self._meter = meter
        self._left = left
        self._failed = failed
        self._places = generator.places
        largest = self._places[max(self._places)].buffers
        self._device = largest.token.device
        self._slots = Slots(self._places, partial(copy_row, largest.cache))
        self._joint = JointPrefill(self._places, steps, meter, self._slots, channel.receive)
        self._log = StepLog()
        self._round: Round | None = None
        self._reach = 0
        self._poll_due = False
        self.members: list[Member] = []

    @property
    def rows(self) -> int:
        """The rows that run."""
        return self._slots.taken

    @property
    def free(self) -> int:
        """The rows that do not."""
        return self._slots.free

    def steps_left(self) -> float:
        """Decode steps that a row which runs still takes, on average; fewer where a text ends early."""
        left = [
            member.job.max_new_tokens - 1 - (self._log.end - member.decode_begin) for member in self.members
        ]
        return fmean(max(0, one) for one in left)

    def room(self, beside: int = 0) -> int:
        """The most rows that may join together now, next to `beside` others that will have before."""
        return self._slots.room(beside)

    def join(self, jobs: Sequence[tuple[Job, JobResult]]) -> None:
        """Prefill `jobs`, for whose prompts there is room; those that run stand still meanwhile.

        A job that cannot run with its arguments leaves at once, with the reason in its result; where their
        prefill fails, all of `jobs` do.
        """
        began = perf_counter_ns()
        standing = {id(log): log for log in (member.newest(self._log) for member in self.members)}
        first = len(self.members)
        for job, result in jobs:
            self._enter(job, result)
        if entered := self.members[first:]:
            self._prefill(entered)
        stood_ns = perf_counter_ns() - began
        for log in standing.values():
            log.stall(stood_ns)

    def _enter(self, job: Job, result: JobResult) -> None:
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        try:
            prompts, rows = self._generator.tokenise(job, result)
            sampler = Sampler(job, self._device, self._generator.tokenizer.ends)
        except Exception as error:
            if is_device_lost(error):
                raise
            self._failed(error, [result])
            self._left(never_ran(job, result))
        else:
            self.members.append(
                Member(job, result, prompts, rows, sampler, usage, decode_begin=self._log.end)
            )

    def _prefill(self, entered: list[Member]) -> None:
        self._round = None
        try:
            values, now_ns = self._joint.run(entered)
        except Exception as error:
            if is_device_lost(error):
                raise
            self._break_off(error, entered)
        else:
            self._hand_out(entered, values, now_ns)

    def steps(self, waiting: int) -> None:
        """Decode steps of all members, of which there is at least one: until one leaves, or not `waiting`
        messages wait any more, and where some do LOOKED_UP_STEPS at most.
        """
        channel, left = self._channel, LOOKED_UP_STEPS
        self.step()
        while self._round is not None and channel.depth == waiting and (left := left - (waiting > 0)):
            self.step()

    def step(self) -> None:
        """One of them; where it fails, all members leave."""
        try:
            values = self._compute()
        except Exception as error:
            if is_device_lost(error):
                raise
            self._break_off(error, list(self.members))
        else:
            self._hand_out(list(self.members), values, perf_counter_ns())

    def _compute(self) -> list[int]:
        """The next token of each row."""
        slots, readings, this = self._slots, self._log.readings, self._round
        if this is None or slots.used > this.reach:
            this = self._round = new_round(slots, self._places, self._steps, self.members)
            self._reach = this.reach
        this.feed.put_rows(slots.tokens, slots.positions, readings)
        logits, greedy = self._meter.run(this.step, this.arguments, readings)
        tokens = choose(this.choosing, logits, greedy, readings)
        values = self._meter.fetch(tokens, readings)
        self._log.add(this.bucket, this.rows)
        slots.advance(values)
        return values

    def _hand_out(self, members: list[Member], values: list[int], now_ns: int) -> None:
        """Each of `members` takes its tokens; those that are complete, late or cancelled leave."""
        self._poll_due = not self._poll_due
        if self._poll_due:
            self._channel.receive()
        for member in members:
            try:
                if examined := member.rows.take_in([values[row] for row in member.slots]):
                    self._generator.stream(member.job, examined)
            except Exception as error:
                if is_device_lost(error):
                    raise
                self._break_off(error, [member])
                continue
            if examined and member.rows.complete:
                self._leave(member)
            elif now_ns > member.job.deadline_ns:
                self._leave(member, "timeout")
            elif self._channel.is_cancelled(member.job):
                self._leave(member, "cancelled")

    def _leave(self, member: Member, kind: OutcomeKind | None = None) -> None:
        if kind is not None:
            member.result.kind = kind
        self.members.remove(member)
        if member.slots:
            self._slots.release(member.slots)
        self._round = None
        member.result.attended_tokens = self._reach if member.decode_begin < self._log.end else 0
        left = member.leave(self._log, perf_counter_ns())
        self._generator.stream(member.job, member.rows.end())
        self._left(left)
        self._log.forget(min((one.decode_begin for one in self.members), default=self._log.end))

    def _break_off(self, error: Exception, members: Sequence[Member]) -> None:
        """`members` leave, because something that was theirs alone has failed."""
        self._failed(error, [member.result for member in members])
        for member in members:
            self._leave(member)
