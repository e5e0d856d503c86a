"""Runs one job: tokenise, pad to a bucket, prefill in chunks, then decode one step at a time."""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Protocol

import torch
from torch import Tensor

from models.served import ServedTokenizer
from service.engine.feed import Feed, new_feed
from service.engine.job_result import JobResult
from service.engine.prompts import check_lengths, encode_prompts, lay_out
from service.engine.text import Completion, Completions
from service.records import Job, OutcomeKind, Phase, Token
from service.step.buffers import Buffers
from service.step.callables import Step
from service.step.meters import Meter, Readings
from service.step.sampling import Sampler

POLL_NS = 10_000_000
"""A job that runs alone looks no more often for what has arrived: nothing joins it, so all it can be is a
cancellation. Behind a step, whose weights have passed through the caches, one look takes 2 to 16 µs."""


class _StopGeneration(Exception):
    """The job ends before its rows are complete: it was cancelled, or its deadline has passed."""

    def __init__(self, kind: OutcomeKind) -> None:
        super().__init__(kind)
        self.kind = kind


class JobChannel(Protocol):
    """The running job's connection to the front: cancellations come in, streamed text goes out."""

    def receive(self) -> None:
        """Receive what has arrived, without waiting; called between two steps, once per POLL_NS at most."""

    def is_cancelled(self, job: Job) -> bool:
        """Whether a Cancel of `job` has been received."""

    def send(self, message: Token) -> None:
        """Stream a piece of text."""


@dataclass(frozen=True, slots=True)
class _JobContext:
    """What prefill and decode of one job work on; its longest prompt has `longest` tokens."""

    job: Job
    result: JobResult
    longest: int
    rows: Completions
    inputs: BucketInputs
    sampler: Sampler
    meter: Meter


class Generator:
    """Holds what all jobs share: tokenizer, buffers and channel. One job runs at a time."""

    def __init__(
        self, tokenizer: ServedTokenizer, buffers: dict[int, Buffers], context: int, channel: JobChannel
    ) -> None:
        self.inputs = {bucket: BucketInputs(one, new_feed(one)) for bucket, one in buffers.items()}
        self.tokenizer = tokenizer
        self._context = context
        self._channel = channel
        self._poll_ns = 0

    def run(self, job: Job, steps: Mapping[tuple[Phase, int], Step], result: JobResult, meter: Meter) -> None:
        """Run `job` with the steps of its mode, recording everything in `result` as it happens.

        Raises JobError where the prompts do not fit; whatever torch raises passes through, with `result`
        holding what was measured until then.
        """
        before = resource.getrusage(resource.RUSAGE_THREAD)
        try:
            prompts, rows = self.tokenise(job, result)
            inputs = self.inputs[result.bucket]
            sampler = Sampler(job, inputs.buffers.token.device, self.tokenizer.ends)
            context = _JobContext(job, result, max(map(len, prompts)), rows, inputs, sampler, meter)
            tokens = self._prefill(context, prompts, steps["prefill", result.bucket])
            now = resource.getrusage(resource.RUSAGE_THREAD)
            result.prefill.minor_faults = now.ru_minflt - before.ru_minflt
            self._decode(context, tokens, steps["decode", result.bucket])
        except _StopGeneration as stop:
            result.kind = stop.kind
        finally:
            result.ended_ns = perf_counter_ns()
            after = resource.getrusage(resource.RUSAGE_THREAD)
            result.involuntary_switches = after.ru_nivcsw - before.ru_nivcsw
            result.decode.minor_faults = after.ru_minflt - before.ru_minflt - result.prefill.minor_faults
            if result.rows is not None:
                self.stream(job, result.rows.end())

    def tokenise(self, job: Job, result: JobResult) -> tuple[list[list[int]], Completions]:
        """The token ids of the prompts, and their completions, which are still empty.

        Raises JobError where the prompts do not fit.
        """
        began = perf_counter_ns()
        prompts = encode_prompts(job.prompts, self.tokenizer, self._context)
        result.prompt_tokens = sum(map(len, prompts))
        check_lengths(prompts, job.max_new_tokens, self._context)
        result.bucket = min(bucket for bucket in self.inputs if bucket >= len(prompts))
        result.rows = rows = Completions(job, self.tokenizer)
        result.tokenise_ns = perf_counter_ns() - began
        return prompts, rows

    def _check(self, job: Job, now_ns: int) -> None:
        """Between two steps: raise _StopGeneration where the deadline has passed or the job is cancelled.

        Receives once per POLL_NS at most: a poll costs microseconds even where nothing has arrived.
        """
        if now_ns > job.deadline_ns:
            raise _StopGeneration("timeout")
        if now_ns >= self._poll_ns:
            self._poll_ns = now_ns + POLL_NS
            self._channel.receive()
        if self._channel.is_cancelled(job):
            raise _StopGeneration("cancelled")

    def _prefill(self, context: _JobContext, prompts: list[list[int]], step: Step) -> Tensor:
        """Fill the cache; returns the first new tokens, int64 [bucket]."""
        job, result, inputs = context.job, context.result, context.inputs
        found = prefill(
            prompts,
            inputs,
            step,
            context.meter,
            result.prefill,
            between=lambda: self._check(job, perf_counter_ns()),
        )
        result.padded_prompt_tokens = found.padded
        inputs.buffers.positions.copy_(found.lengths, non_blocking=True)
        return context.sampler.choose(found.logits, found.greedy, result.prefill)

    def _decode(self, context: _JobContext, tokens: Tensor, step: Step) -> None:
        """Run decode steps until every row is complete; `tokens`, int64 [bucket], are those of prefill.

        What runs between two calls of `step` here is the engine's own work per decode step.
        """
        job, result, rows = context.job, context.result, context.rows
        buffers, feed, meter, sampler = (
            context.inputs.buffers,
            context.inputs.feed,
            context.meter,
            context.sampler,
        )
        readings = result.prefill
        used = context.longest
        reach = 0
        while True:
            values = meter.fetch(tokens, readings)
            now = perf_counter_ns()
            if result.first_token_ns is None:
                result.first_token_ns = now
            if examined := rows.take_in(values):
                self.stream(job, examined)
                if rows.complete:
                    return
            self._check(job, now)
            readings = result.decode
            used += 1
            if used > reach:
                result.attended_tokens = reach = buffers.reach(used)
                arguments = buffers.arguments("decode", reach=reach)
            feed.put(tokens, values, readings)
            logits, greedy = meter.run(step, arguments, readings)
            feed.advance(readings)
            tokens = sampler.choose(logits, greedy, readings)

    def stream(self, job: Job, examined: list[tuple[int, Completion]]) -> None:
        """Send what may leave of the `examined` rows, where the job streams."""
        if job.stream:
            for index, row in examined:
                if piece := row.unsent():
                    self._channel.send(Token(id=job.id, index=index, text=piece))


@dataclass(frozen=True, slots=True)
class BucketInputs:
    """The static inputs of the steps of one batch bucket, and what writes them."""

    buffers: Buffers
    feed: Feed


@dataclass(frozen=True, slots=True)
class Prefilled:
    """What the last token of each prompt predicts: `logits` [bucket, vocabulary], `greedy` int64 [bucket].

    `lengths`, int64 [bucket] on the host, are the tokens of each row, `padded` those that were computed.
    """

    logits: Tensor
    greedy: Tensor
    lengths: Tensor
    padded: int


def prefill(
    prompts: list[list[int]],
    inputs: BucketInputs,
    step: Step,
    meter: Meter,
    readings: Readings,
    between: Callable[[], None],
) -> Prefilled:
    """Run `step` over `prompts` in the first rows of the cache; `between` is called before every chunk.

    Rows are padded on the right. What padding writes to the cache lies behind a row's own positions and is
    overwritten by decode before anything may attend to it.
    """
    buffers = inputs.buffers
    layout = lay_out(prompts, buffers.bucket, list(buffers.chunks), pinned=buffers.token.is_cuda)
    logits = greedy = None
    begin = 0
    try:
        for index, chunk in enumerate(layout.chunks):
            between()
            length = chunk.shape[1]
            arguments = buffers.arguments("prefill", length, buffers.reach(begin + length))
            inputs.feed.put_chunk(chunk, begin, layout.last[index], readings)
            new_logits, new_greedy = meter.run(step, arguments, readings)
            begin += length
            if logits is None or greedy is None:
                logits, greedy = new_logits, new_greedy
                if len(layout.chunks) > 1:
                    # Kept by copy: another chunk follows, and a graph replay overwrites its last output.
                    logits, greedy = logits.clone(), greedy.clone()
            else:
                contains = layout.contains[index].to(new_logits.device, non_blocking=True)
                logits = torch.where(contains.unsqueeze(1), new_logits, logits)
                greedy = torch.where(contains, new_greedy, greedy)
    finally:
        # Given up between two chunks, it would else be what steps of this bucket go by.
        buffers.last.zero_()
    assert logits is not None
    assert greedy is not None
    return Prefilled(logits, greedy, layout.lengths, begin)
