"""Runs one job: tokenise, pad to a bucket, prefill in chunks, then decode one step at a time."""

from __future__ import annotations

import resource
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import c_int64
from dataclasses import dataclass
from itertools import product
from time import perf_counter_ns
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from models.served import ServedTokenizer
from service.engine.inbox import Inbox, LocalInbox, local_job
from service.engine.job import JobEnded, JobResult, JobWatch
from service.engine.text import Completion, Completions, encode_prompts
from service.records import Job, Phase, Token
from service.step.buffers import Arguments, Buffers
from service.step.callables import Step
from service.step.meters import Copied, Meter, Readings
from service.step.sampling import Sampler

SAMPLING: tuple[dict[str, Any], ...] = (
    {"temperature": 1.0, "top_k": 2, "seed": 1},
    {"temperature": 1.0, "top_p": 0.5},
)
"""Between them they need every operator that sampling has."""


class Generator:
    """Runs one job at a time; holds what all share: tokenizer, inbox, and a feed per batch bucket."""

    def __init__(
        self, tokenizer: ServedTokenizer, buffers: dict[int, Buffers], context: int, inbox: Inbox | LocalInbox
    ) -> None:
        self.feeds = {bucket: new_feed(one) for bucket, one in buffers.items()}
        self.tokenizer = tokenizer
        self._context = context
        self._inbox = inbox
        self._watch = JobWatch(inbox)

    def run(self, job: Job, steps: Mapping[tuple[Phase, int], Step], result: JobResult, meter: Meter) -> None:
        """Run `job` with the steps of its mode, recording everything in `result` as it happens.

        Raises JobError where the prompts do not fit, and whatever torch raises.
        """
        before = resource.getrusage(resource.RUSAGE_THREAD)
        try:
            prompts, rows = self.tokenise(job, result)
            feed = self.feeds[result.bucket]
            sampler = Sampler(job, feed.buffers.token.device)
            step = steps["prefill", result.bucket]
            found = prefill(
                prompts, feed, step, meter, result.prefill, lambda: self._watch.check(job, perf_counter_ns())
            )
            result.padded_prompt_tokens = found.padded
            feed.place(found.lengths)
            tokens = sampler.choose(found.logits, found.greedy, result.prefill)
            now = resource.getrusage(resource.RUSAGE_THREAD)
            result.prefill.minor_faults = now.ru_minflt - before.ru_minflt
            used = max(map(len, prompts))
            decode = DecodeSteps(steps["decode", result.bucket], feed, meter, sampler, result, tokens, used)
            self._decode(job, result, rows, decode, meter.copy(tokens))
        except JobEnded as end:
            result.kind = end.kind
        finally:
            result.ended_ns = perf_counter_ns()
            after = resource.getrusage(resource.RUSAGE_THREAD)
            result.involuntary_switches = after.ru_nivcsw - before.ru_nivcsw
            result.decode.minor_faults = after.ru_minflt - before.ru_minflt - result.prefill.minor_faults
            if result.rows is not None:
                self.stream(job, result.rows.end())

    def tokenise(self, job: Job, result: JobResult) -> tuple[list[list[int]], Completions]:
        """The token ids of the prompts, and their completions, still empty. Raises JobError."""
        began = perf_counter_ns()
        prompts = encode_prompts(job.prompts, self.tokenizer, self._context, job.max_new_tokens)
        result.prompt_tokens = sum(map(len, prompts))
        result.bucket = min(bucket for bucket in self.feeds if bucket >= len(prompts))
        result.rows = rows = Completions(job, self.tokenizer)
        result.tokenise_ns = perf_counter_ns() - began
        return prompts, rows

    def _decode(
        self, job: Job, result: JobResult, rows: Completions, steps: DecodeSteps, copied: Tensor | Copied
    ) -> None:
        """Run decode steps until every row is complete; `copied` are the tokens of prefill.

        On CUDA a step is launched before the tokens of the one before have arrived, so that the device does
        not wait for the host. Where these end the text, it was one too many, and is waited for like any.
        """
        meter, readings, ahead = steps.meter, result.prefill, None
        watch, on_cuda = self._watch, steps.on_cuda
        for left in reversed(range(job.max_new_tokens)):
            # Not behind prefill, whose wait would else be a part of the first decode step.
            if on_cuda and left and readings is result.decode:
                ahead = steps.launch([])
            values = meter.fetch(copied, readings)
            now = perf_counter_ns()
            if result.first_token_ns is None:
                result.first_token_ns = now
            if examined := rows.take_in(values):
                self.stream(job, examined)
                if rows.complete:
                    break
            if now >= watch.due_ns:
                watch.check(job, now)
            readings = result.decode
            copied, ahead = steps.launch(values) if ahead is None else ahead, None
        if ahead is not None:
            meter.fetch(ahead, readings)

    def lead(self, job: Job) -> Job:
        """Runs before `job`, which is sampled: right after another mode the host takes more of a prefill."""
        return msgspec.structs.replace(job, max_new_tokens=1, stop=[], stream=False)

    def warm_up_jobs(self, mode: str) -> Iterator[Job]:
        """Sampled ones at every batch bucket: on CUDA the first use of a kernel loads it."""
        for bucket, options in product(self.feeds, SAMPLING):
            yield local_job("warm-up", mode, [[0]] * bucket, 3, **options)

    def sizes(self, result: JobResult) -> dict[Phase, int]:
        """The `step_size` of the newest steps of a job, of which its samples are to be."""
        chunk = self.feeds[max(self.feeds)].buffers.chunk_length
        return {"prefill": min(result.padded_prompt_tokens, chunk), "decode": result.attended_tokens}

    def stream(self, job: Job, examined: list[tuple[int, Completion]]) -> None:
        """Send what may leave of the `examined` rows, where the job streams."""
        if job.stream:
            for index, row in examined:
                if piece := row.unsent():
                    self._inbox.send(Token(id=job.id, index=index, text=piece))


@dataclass(slots=True)
class DecodeSteps:
    """Launches the decode steps of one job. `tokens`, int64 [bucket], are the newest on the device; `used`
    positions of the cache are filled.
    """

    step: Step
    feed: HostFeed
    meter: Meter
    sampler: Sampler
    result: JobResult
    tokens: Tensor
    used: int
    arguments: Arguments | None = None

    @property
    def on_cuda(self) -> bool:
        return self.tokens.is_cuda

    def launch(self, values: list[int]) -> Tensor | Copied:
        """The next step, and the copy of its tokens. `values` are those of `tokens`; on CUDA not needed."""
        feed, readings = self.feed, self.result.decode
        self.used += 1
        if self.arguments is None or self.used > self.result.attended_tokens:
            self.result.attended_tokens = reach = feed.buffers.reach(self.used)
            self.arguments = feed.buffers.arguments("decode", reach=reach)
        feed.put(self.tokens, values, readings)
        logits, greedy = self.meter.run(self.step, self.arguments, readings)
        feed.advance(readings)
        self.tokens = self.sampler.choose(logits, greedy, readings)
        return self.meter.copy(self.tokens)


class Prefilled(NamedTuple):
    """What the last token of each prompt predicts: `logits` [bucket, vocabulary], `greedy` int64 [bucket].

    `lengths` are the tokens of each row, `padded` those that were computed.
    """

    logits: Tensor
    greedy: Tensor
    lengths: list[int]
    padded: int


def prefill(
    prompts: list[list[int]],
    feed: HostFeed,
    step: Step,
    meter: Meter,
    readings: Readings,
    between: Callable[[], None],
) -> Prefilled:
    """Run `step` over `prompts` in the first rows of the cache; `between` is called before every chunk.

    Rows are padded on the right: padding in the cache is overwritten before anything attends to it.
    """
    buffers = feed.buffers
    layout = lay_out(prompts, buffers.bucket, list(buffers.chunks))
    logits = greedy = None
    begin = 0
    try:
        for index, chunk in enumerate(layout.chunks):
            between()
            length = len(chunk) // buffers.bucket
            arguments = buffers.arguments("prefill", length, buffers.reach(begin + length))
            feed.put_chunk(chunk, begin, layout.last[index], readings)
            new_logits, new_greedy = meter.run(step, arguments, readings)
            begin += length
            if logits is None or greedy is None:
                logits, greedy = new_logits, new_greedy
                if len(layout.chunks) > 1:
                    # Another chunk follows, and a graph replay overwrites its last output.
                    logits, greedy = logits.clone(), greedy.clone()
            else:
                contains = on_host(layout.contains[index], new_logits)
                contains = contains.to(new_logits.device, non_blocking=True)
                logits = torch.where(contains.unsqueeze(1), new_logits, logits)
                greedy = torch.where(contains, new_greedy, greedy)
    finally:
        # Given up between two chunks, it would else be what steps of this bucket go by.
        feed.forget_last()
    assert logits is not None
    assert greedy is not None
    return Prefilled(logits, greedy, layout.lengths, begin)


class Layout(NamedTuple):
    """A ragged batch cut into prefill chunks.

    `chunks` has the tokens of each, row after row; `last` for each chunk the index of every row's last token
    in it; `contains` whether the row has tokens in that chunk; `lengths` the tokens of each row.
    """

    chunks: list[list[int]]
    last: list[list[int]]
    contains: list[list[bool]]
    lengths: list[int]


def lay_out(prompts: list[list[int]], bucket: int, sizes: Sequence[int]) -> Layout:
    """Right-pad `prompts` with token 0 to chunks, and the batch with one-token rows to `bucket`.

    Of `sizes`, ascending, the last chunk has the shortest that fits, others the longest.
    """
    filled = prompts + [[0]] * (bucket - len(prompts))
    lengths = [len(prompt) for prompt in filled]
    longest, chunk = max(lengths), sizes[-1]
    begins = range(0, longest, chunk)
    total = begins[-1] + next(size for size in sizes if size >= longest - begins[-1])
    padded = [prompt + [0] * (total - len(prompt)) for prompt in filled]
    return Layout(
        chunks=[[token for row in padded for token in row[begin : begin + chunk]] for begin in begins],
        last=[[min(max(length - 1 - begin, 0), chunk - 1) for length in lengths] for begin in begins],
        contains=[[length > begin for length in lengths] for begin in begins],
        lengths=lengths,
    )


def on_host(values: Sequence[int], target: Tensor) -> Tensor:
    """`values` as a tensor on the host, pinned where `target` is on a GPU, so that its copy needs no wait."""
    return torch.tensor(values, pin_memory=target.is_cuda)


class HostFeed:
    """Writes a step's tokens and positions into `buffers`, on a CPU word by word and on no clock.

    After a step, whose weights have passed through the caches, an operator of torch or NumPy costs more than
    the whole loop: its dispatcher's code has to be fetched again.
    """

    def __init__(self, buffers: Buffers) -> None:
        self.buffers = buffers
        self._tokens = _words(buffers.token_row)
        self._positions = _words(buffers.positions)
        self._last = _words(buffers.last)
        self._chunks = {length: _words(chunk.view(-1)) for length, chunk in buffers.chunks.items()}

    def put_chunk(self, chunk: list[int], begin: int, last: list[int], readings: Readings) -> None:
        """Set a prefill step's inputs, which begin at position `begin`.

        `chunk` has the tokens of all rows, `last` the index of each row's last token.
        """
        self._chunks[len(chunk) // len(last)][:] = array("q", chunk)
        self._last[:] = array("q", last)
        self._positions[:] = array("q", [begin] * len(last))

    def forget_last(self) -> None:
        """Every row has one token in the steps that follow."""
        self._last[:] = array("q", bytes(self._last.nbytes))

    def place(self, lengths: list[int]) -> None:
        """Every row is fed next behind its `lengths` tokens."""
        self._positions[:] = array("q", lengths)

    def put(self, tokens: Tensor, values: list[int], readings: Readings) -> None:
        """Set a decode step's tokens: `tokens`, int64 [bucket], whose values on the host are `values`."""
        row = self._tokens
        for index, value in enumerate(values):
            row[index] = value

    def advance(self, readings: Readings) -> None:
        """Move every row on by one position, after the step that `put` was called for."""
        positions = self._positions
        for index in range(len(positions)):
            positions[index] += 1

    def put_rows(self, tokens: list[int], positions: list[int], readings: Readings) -> None:
        """Set a decode step's tokens and positions, one of each per row, from the host."""
        token_row, position_row = self._tokens, self._positions
        for index in range(len(token_row)):
            token_row[index] = tokens[index]
            position_row[index] = positions[index]


class DeviceFeed(HostFeed):
    """On CUDA, by operators, which the host issues as it does the step's: `readings.feed` is dispatch."""

    def __init__(self, buffers: Buffers) -> None:
        self.buffers = buffers
        self._token_row = buffers.token_row
        self._position_row = buffers.positions
        self._one = buffers.one
        self._rows = torch.zeros(2, buffers.bucket, dtype=torch.int64, pin_memory=buffers.token.is_cuda)
        self._host_rows = _words(self._rows.view(-1))

    def put_chunk(self, chunk: list[int], begin: int, last: list[int], readings: Readings) -> None:
        buffers = self.buffers
        target = buffers.chunks[len(chunk) // len(last)]
        tokens, ends = on_host(chunk, target).view_as(target), on_host(last, target)
        began = perf_counter_ns()
        target.copy_(tokens, non_blocking=True)
        buffers.positions.fill_(begin)
        buffers.last.copy_(ends, non_blocking=True)
        readings.feed.append(perf_counter_ns() - began)

    def forget_last(self) -> None:
        self.buffers.last.zero_()

    def place(self, lengths: list[int]) -> None:
        self.buffers.positions.copy_(on_host(lengths, self.buffers.positions), non_blocking=True)

    def put(self, tokens: Tensor, values: list[int], readings: Readings) -> None:
        began = perf_counter_ns()
        self._token_row.copy_(tokens)
        readings.feed.append(perf_counter_ns() - began)

    def advance(self, readings: Readings) -> None:
        began = perf_counter_ns()
        self._position_row.add_(self._one)
        readings.feed[-1] += perf_counter_ns() - began

    def put_rows(self, tokens: list[int], positions: list[int], readings: Readings) -> None:
        """By two copies out of pinned memory, which the device has read when the step is waited for."""
        began = perf_counter_ns()
        bucket = len(self._position_row)
        for index, value in enumerate((*tokens[:bucket], *positions[:bucket])):
            self._host_rows[index] = value
        self._token_row.copy_(self._rows[0], non_blocking=True)
        self._position_row.copy_(self._rows[1], non_blocking=True)
        readings.feed.append(perf_counter_ns() - began)


def new_feed(buffers: Buffers) -> HostFeed:
    return DeviceFeed(buffers) if buffers.token.is_cuda else HostFeed(buffers)


def _words(tensor: Tensor) -> memoryview:
    """The elements of `tensor`, int64 of one dimension on the host, as integers in its own memory."""
    address, size = tensor.data_ptr(), tensor.numel()
    return memoryview((c_int64 * size).from_address(address)).cast("B").cast("q")
