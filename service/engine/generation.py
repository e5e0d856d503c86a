"""Runs one job: tokenise, pad to a bucket, prefill in chunks, then decode one step at a time."""

from __future__ import annotations

import resource
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Protocol

import torch
from torch import Tensor

from models.served import ServedTokenizer
from service.engine.text import Completion, Completions
from service.protocol.messages import Job, OutcomeKind, Problem, Token
from service.step.callables import Buffers, Step
from service.step.meters import Meter, Readings
from service.step.sampling import Sampler


class JobError(Exception):
    """A job that cannot run as asked; `problem` is what the client is told."""

    def __init__(self, type_: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.problem = Problem(type=type_, message=message, param=param)


class _Stopped(Exception):
    """The job ends before its rows are complete: the client is gone, or time is up."""

    def __init__(self, kind: OutcomeKind) -> None:
        super().__init__(kind)
        self.kind = kind


class Border(Protocol):
    """What a running job needs of the border."""

    def is_cancelled(self, job: Job) -> bool:
        """Whether the client has gone away."""

    def send(self, message: Token) -> None:
        """Stream a piece of text."""


@dataclass(slots=True)
class Run:
    """Everything that one job left behind, raw; times in nanoseconds."""

    kind: OutcomeKind = "ok"
    bucket: int = 0
    prompt_tokens: int = 0
    rows: Completions | None = None
    prefill: Readings = field(default_factory=Readings)
    decode: Readings = field(default_factory=Readings)
    tokenise_ns: int = 0
    first_token_ns: int | None = None
    involuntary_switches: int = 0


@dataclass(frozen=True, slots=True)
class _RunningJob:
    """What one running job works with."""

    job: Job
    run: Run
    buffers: Buffers
    sampler: Sampler
    meter: Meter


class Generator:
    """Holds what all jobs share: tokenizer and buffers. One job runs at a time."""

    def __init__(
        self, tokenizer: ServedTokenizer, buffers: dict[int, Buffers], context: int, border: Border
    ) -> None:
        self._tokenizer, self._buffers = tokenizer, buffers
        self._context, self._border = context, border

    def run(self, job: Job, steps: dict[tuple[str, int], Step], run: Run, meter: Meter) -> None:
        """Run `job` with the steps of its mode, noting everything in `run` as it happens.

        Raises JobError where the prompts do not fit; whatever torch raises passes through, with `run`
        holding what was measured until then.
        """
        switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
        try:
            prompts = self._tokenise(job, run)
            buffers = self._buffers[run.bucket]
            sampler = Sampler(job, buffers.token.device, self._tokenizer.ends)
            running = _RunningJob(job, run, buffers, sampler, meter)
            tokens = self._prefill(running, prompts, steps["prefill", run.bucket])
            self._decode(running, tokens, steps["decode", run.bucket])
        except _Stopped as stopped:
            run.kind = stopped.kind
        finally:
            run.involuntary_switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw - switches

    def _tokenise(self, job: Job, run: Run) -> list[list[int]]:
        began = perf_counter_ns()
        prompts = [
            self._tokenizer.encode(prompt) if isinstance(prompt, str) else self._known(prompt)
            for prompt in job.prompts
        ]
        run.prompt_tokens = sum(map(len, prompts))
        if not all(prompts):
            raise JobError("invalid_request", "a prompt has no tokens: write at least a word", "prompts")
        longest = max(map(len, prompts))
        if longest + job.max_new_tokens > self._context:
            raise JobError(
                "prompt_too_long",
                f"the longest prompt has {longest} tokens; with {job.max_new_tokens} new ones that is over"
                f" the context of {self._context}: shorten the prompt or ask for fewer tokens",
                "prompts",
            )
        run.bucket = min(bucket for bucket in self._buffers if bucket >= len(prompts))
        run.rows = Completions(job, self._tokenizer)
        run.tokenise_ns = perf_counter_ns() - began
        return prompts

    def _known(self, prompt: list[int]) -> list[int]:
        """`prompt`; raises JobError where one of its token ids is none of this model's."""
        vocabulary = self._tokenizer.vocabulary
        strange = [token for token in prompt if not 0 <= token < vocabulary]
        if strange:
            message = f"there is no token {strange[0]}: ids go from 0 to {vocabulary - 1}"
            raise JobError("invalid_request", message, "prompts")
        return prompt

    def _check(self, job: Job, now_ns: int) -> None:
        """Between two steps: raise _Stopped where the deadline has passed or the client is gone."""
        if now_ns > job.deadline_ns:
            raise _Stopped("timeout")
        if self._border.is_cancelled(job):
            raise _Stopped("cancelled")

    def _prefill(self, running: _RunningJob, prompts: list[list[int]], step: Step) -> Tensor:
        """Fill the cache chunk by chunk; returns the first new tokens, int64 [bucket].

        Rows are padded on the right. What padding writes to the cache lies behind a row's own positions and
        is overwritten by decode before anything may attend to it.
        """
        buffers = running.buffers
        layout = lay_out(prompts, buffers.bucket, buffers.chunk.shape[1], pinned=buffers.chunk.is_cuda)
        logits = greedy = None
        for index, chunk in enumerate(layout.chunks):
            self._check(running.job, perf_counter_ns())
            buffers.chunk.copy_(chunk, non_blocking=True)
            buffers.positions.fill_(index * chunk.shape[1])
            buffers.last.copy_(layout.last[index], non_blocking=True)
            new_logits, new_greedy = running.meter.run(step, buffers, buffers.chunk, running.run.prefill)
            if logits is None or greedy is None:
                # Kept by copy: another chunk may follow, and a graph replay overwrites its last output.
                logits, greedy = new_logits.clone(), new_greedy.clone()
            else:
                here = layout.reaches[index].to(new_logits.device, non_blocking=True)
                logits = torch.where(here.unsqueeze(1), new_logits, logits)
                greedy = torch.where(here, new_greedy, greedy)
        assert logits is not None
        assert greedy is not None
        buffers.positions.copy_(layout.lengths, non_blocking=True)
        buffers.last.zero_()
        return running.sampler.choose(logits, greedy, running.run.prefill)

    def _decode(self, running: _RunningJob, tokens: Tensor, step: Step) -> None:
        """Take in tokens and run steps until every row is complete, the client is gone or time is up.

        What stands between two calls of `step` here is the engine's own work per decode step.
        """
        job, run, buffers, meter, sampler = (
            running.job,
            running.run,
            running.buffers,
            running.meter,
            running.sampler,
        )
        rows, readings = run.rows, run.prefill
        assert rows is not None
        while True:
            values = meter.fetch(tokens, readings)
            now = perf_counter_ns()
            if run.first_token_ns is None:
                run.first_token_ns = now
            if (examined := rows.take_in(values)) and self._finish(job, rows, examined):
                return
            self._check(job, now)
            readings = run.decode
            buffers.token_row.copy_(tokens)
            logits, greedy = meter.run(step, buffers, buffers.token, readings)
            buffers.positions.add_(buffers.one)
            tokens = sampler.choose(logits, greedy, readings)

    def _finish(self, job: Job, rows: Completions, examined: list[tuple[int, Completion]]) -> bool:
        """Stream what may leave of the `examined` rows; True once all rows are complete."""
        if job.stream:
            for index, row in examined:
                if piece := row.unsent():
                    self._border.send(Token(id=job.id, index=index, text=piece))
        return rows.complete


@dataclass(frozen=True, slots=True)
class Layout:
    """A ragged batch cut into prefill chunks, on the host (pinned for CUDA, so that copies need no wait).

    `chunks` int64 [count, bucket, chunk]; `last` int64 [count, bucket], the place in each chunk of a row's
    last token; `reaches` bool [count, bucket], whether a row has tokens in that chunk; `lengths` int64
    [bucket].
    """

    chunks: Tensor
    last: Tensor
    reaches: Tensor
    lengths: Tensor


def lay_out(prompts: list[list[int]], bucket: int, chunk: int, pinned: bool) -> Layout:
    """Right-pad `prompts` with token 0 to whole chunks, and the batch with one-token rows to `bucket`."""
    filled = prompts + [[0]] * (bucket - len(prompts))
    lengths = [len(prompt) for prompt in filled]
    begins = range(0, max(lengths), chunk)

    def tensor(values: object) -> Tensor:
        return torch.tensor(values, pin_memory=pinned)

    padded = [prompt + [0] * (len(begins) * chunk - len(prompt)) for prompt in filled]
    return Layout(
        chunks=tensor([[row[begin : begin + chunk] for row in padded] for begin in begins]),
        last=tensor([[min(max(length - 1 - begin, 0), chunk - 1) for length in lengths] for begin in begins]),
        reaches=tensor([[length > begin for length in lengths] for begin in begins]),
        lengths=tensor(lengths),
    )
