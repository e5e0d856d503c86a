"""One job through the engine's own loop: padding, chunks, ends, text, sampling, and costs between steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from models.checkpoint import TINY_FOLDER, Checkpoint
from models.tokenizer import ByteLevelStream, Tokenizer
from service.engine import generation
from service.engine import job as job_module
from service.engine.generation import DeviceFeed, Generator, HostFeed, new_feed, prefill
from service.engine.inbox import local_job
from service.engine.job import JobResult
from service.engine.text import Completions, JobError, encode_prompts
from service.modes import MODES
from service.records import Job, Output, Token
from service.step.buffers import Buffers, allocate
from service.step.callables import Step, build_step
from service.step.meters import HostMeter, Readings
from service.step.sampling import Sampler, nucleus

PROMPT = "def mean(values):\n"
LONG = "import os\n" * 40


class Client:
    """A channel on which the job is cancelled after `patience` checks."""

    def __init__(self, patience: int = 10**9) -> None:
        self.patience = patience
        self.polls = 0
        self.checks = 0
        self.sent: list[Token] = []

    def receive(self) -> None:
        self.polls += 1

    def is_cancelled(self, job: Job) -> bool:
        self.checks += 1
        return self.checks > self.patience

    def send(self, message: Token) -> None:
        self.sent.append(message)


@pytest.fixture(scope="module")
def engine() -> Callable[[Job, Client], JobResult]:
    torch.set_num_threads(1)
    model = Checkpoint("tiny").build(max_batch=4)
    tokenizer = Tokenizer.load(TINY_FOLDER)
    buffers = allocate(model, [1, 4], prefill_chunk=64)
    step = build_step(MODES["inference_mode"], model)
    steps: dict[tuple[str, int], Step] = {(p, b): step for p in ("prefill", "decode") for b in (1, 4)}

    def run(job: Job, client: Client) -> JobResult:
        result = JobResult()
        with torch.no_grad():
            Generator(tokenizer, buffers, model.config.context, client).run(job, steps, result, HostMeter())
        return result

    return run


Engine = Callable[[Job, Client], JobResult]


def ids(engine: Engine, prompts: list[Any], count: int = 12, **options: object) -> list[list[int]]:
    run = engine(local_job("a", "inference_mode", prompts, count, ignore_eos=True, **options), Client())
    assert run.rows is not None
    return [output.token_ids for output in run.rows.outputs()]


def test_a_prompt_alone_equals_the_same_prompt_inside_a_ragged_batch(engine: Engine) -> None:
    alone = ids(engine, [PROMPT])[0]
    assert ids(engine, ["x", LONG, PROMPT])[2] == alone
    assert ids(engine, [PROMPT, "class A:\n    pass\n"])[0] == alone


def test_a_prefill_that_is_given_up_between_two_chunks_leaves_no_last_token_behind() -> None:
    model = Checkpoint("tiny").build(max_batch=1)
    buffers = allocate(model, [1], prefill_chunk=64)[1]
    step, readings = build_step(MODES["inference_mode"], model), Readings()

    def give_up() -> None:
        if readings.steps:
            assert buffers.last.any()
            raise InterruptedError

    with torch.no_grad(), pytest.raises(InterruptedError):
        prefill([[5] * 100], new_feed(buffers), step, HostMeter(), readings, give_up)
    assert not buffers.last.any()


def test_a_seed_gives_the_same_text_in_every_bucket_and_other_seeds_others(engine: Engine) -> None:
    sampled = [ids(engine, [PROMPT], temperature=1.0, seed=seed)[0] for seed in (7, 7, 8)]
    assert sampled[0] == sampled[1] != sampled[2]


@pytest.mark.parametrize("limits", [{}, {"top_k": 20, "top_p": 0.9}])
def test_nothing_between_the_steps_of_a_sampled_request_reads_a_value_back(
    engine: Engine, limits: dict[str, Any]
) -> None:
    """On CUDA each such reading waits for the device; the tokens themselves come by the meter."""
    job = local_job("a", "inference_mode", [PROMPT], 3, ignore_eos=True, temperature=0.8, seed=1, **limits)
    with profile(activities=[ProfilerActivity.CPU]) as session:
        engine(job, Client())
    names = [event.name for event in session.events()]
    assert names.count("aten::exponential_") == 3
    assert "aten::_local_scalar_dense" not in names


def test_top_k_of_one_and_top_p_near_0_are_greedy_and_top_p_of_1_is_no_limit(engine: Engine) -> None:
    for limit in ({"top_k": 1}, {"top_p": 1e-9}):
        assert ids(engine, [PROMPT], temperature=2.0, seed=1, **limit) == ids(engine, [PROMPT])
    free, limited = (ids(engine, [PROMPT], temperature=1.0, top_p=top_p, seed=3) for top_p in (None, 1.0))
    assert free == limited


def test_token_ids_are_the_text_they_stand_for(engine: Engine) -> None:
    tokens = Tokenizer.load(TINY_FOLDER).encode(PROMPT)
    by_ids, by_text = ids(engine, [tokens, PROMPT])
    assert by_ids == by_text


@pytest.mark.parametrize("token", [-1, 4096])
def test_a_token_that_the_model_does_not_have_is_refused_with_the_range(engine: Engine, token: int) -> None:
    with pytest.raises(JobError, match="from 0 to 4095") as refused:
        engine(local_job("a", "inference_mode", [[1, token]], 8), Client())
    assert refused.value.problem.type == "invalid_request"


def test_what_a_cancelled_job_held_back_for_a_stop_string_is_still_streamed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_module, "POLL_NS", 0)
    client = Client(patience=6)
    stop = ["absent from the text"]
    job = local_job("a", "inference_mode", [PROMPT], 60, ignore_eos=True, stream=True, stop=stop)
    result = engine(job, client)
    assert result.kind == "cancelled"
    assert result.rows is not None
    text = result.rows.outputs()[0].text
    assert text
    assert "".join(token.text for token in client.sent) == text


def test_a_deadline_stops_the_job_between_two_steps_and_keeps_what_was_measured(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "perf_counter_ns", count().__next__)
    job = local_job("a", "inference_mode", [PROMPT], 400, ignore_eos=True)
    run = engine(msgspec.structs.replace(job, deadline_ns=20), Client())
    assert run.kind == "timeout"
    assert 0 < len(run.decode.call) < 20


@pytest.fixture(scope="module")
def buffers() -> Buffers:
    return allocate(Checkpoint("tiny").build(max_batch=4), [4], prefill_chunk=16)[4]


@pytest.mark.parametrize("kind", [DeviceFeed, HostFeed])
def test_the_inputs_of_a_prefill_step_are_written_in_place(
    buffers: Buffers, kind: type[DeviceFeed] | type[HostFeed]
) -> None:
    feed, chunk = kind(buffers), buffers.chunks[16]
    addresses = chunk.data_ptr(), buffers.positions.data_ptr(), buffers.last.data_ptr()
    feed.put_chunk(list(range(64)), 16, [15, 0, 7, 3], Readings())
    assert chunk.tolist() == [list(range(16 * row, 16 * row + 16)) for row in range(4)]
    assert buffers.positions.tolist() == [16] * 4
    assert buffers.last.tolist() == [15, 0, 7, 3]
    feed.forget_last()
    feed.place([32, 17, 2**33, 1])
    assert buffers.last.tolist() == [0] * 4
    assert buffers.positions.tolist() == [32, 17, 2**33, 1]
    assert (chunk.data_ptr(), buffers.positions.data_ptr(), buffers.last.data_ptr()) == addresses


@pytest.mark.parametrize("kind", [DeviceFeed, HostFeed])
def test_tokens_and_positions_of_every_row_are_written_in_place(
    buffers: Buffers, kind: type[DeviceFeed] | type[HostFeed]
) -> None:
    feed, readings = kind(buffers), Readings()
    addresses = buffers.token.data_ptr(), buffers.positions.data_ptr()
    feed.put_rows([7, 1, 2**33, 3], [0, 7, 2**40, 3], readings)
    assert buffers.token.tolist() == [[7], [1], [2**33], [3]]
    tokens = torch.tensor([5, 0, 4095, 2**33])
    feed.put(tokens, tokens.tolist(), readings)
    feed.advance(readings)
    assert buffers.token.tolist() == [[5], [0], [4095], [2**33]]
    assert buffers.positions.tolist() == [1, 8, 2**40 + 1, 4]
    assert (buffers.token.data_ptr(), buffers.positions.data_ptr()) == addresses


def test_what_feeds_a_step_on_a_device_is_on_the_clock_one_entry_per_step(
    buffers: Buffers, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each operator lies between two readings of the clock, which are 10 ns apart.
    monkeypatch.setattr(generation, "perf_counter_ns", partial(next, count(0, 10)))
    feed, readings, tokens = DeviceFeed(buffers), Readings(), torch.zeros(4, dtype=torch.int64)
    feed.put_chunk([0] * 64, 0, [0] * 4, readings)
    for _ in range(2):
        feed.put(tokens, [0] * 4, readings)
        feed.advance(readings)
    assert readings.feed == [10, 20, 20]


def test_steps_that_are_launched_before_tokens_arrive_write_the_same_text(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on CUDA. Where a stop string ends the text, one more step was on its way."""
    options: list[dict[str, Any]] = [{}, {"stop": ["e"]}, {"temperature": 0.8, "seed": 3}]
    jobs = [local_job("a", "eager", [PROMPT, "x"], 24, **{"ignore_eos": True, **one}) for one in options]

    def run() -> list[tuple[Any, int]]:
        results = [engine(job, Client()) for job in jobs]
        return [(one.rows.outputs(), one.decode.steps) for one in results if one.rows is not None]

    waited = run()
    monkeypatch.setattr(generation.DecodeSteps, "on_cuda", True)
    monkeypatch.setattr(HostFeed, "put", lambda feed, tokens, *_: feed.buffers.token_row.copy_(tokens))
    monkeypatch.setattr(HostMeter, "copy", lambda _, tokens: tokens.clone())
    (text, steps), (stopped, fewer), (sampled, _) = waited
    assert fewer < steps == 23
    assert run() == [(text, steps), (stopped, fewer + 1), (sampled, steps)]


# Tokens become the same text however a row ends; a prompt that cannot fit is refused

A, B, LEAD_BYTE, STOP, STOP_AND_LEAD_BYTE, END = range(6)
BYTES = [b"a", b"b", b"\xc3", b";", b";\xc3", b"</s>"]
"""C3 begins a character of two bytes. This end of text has bytes, as those of some models have."""

KINDS: list[dict[str, object]] = [
    {},
    {"stream": True},
    {"stop": ["absent"]},
    {"stream": True, "stop": ["absent"]},
]


class ByteTokenizer(Tokenizer):
    """Six tokens, given by their bytes."""

    def __init__(self) -> None:
        self.ends = frozenset([END])

    def bytes_of(self, token: int) -> bytes:
        return BYTES[token]

    def decode(self, tokens: Iterable[int]) -> str:
        return b"".join(map(self.bytes_of, tokens)).decode(errors="replace")

    def stream(self) -> ByteLevelStream:
        return ByteLevelStream(self)


def complete(tokens: list[int], new_tokens: int, **options: object) -> Output:
    """One row's output after `tokens`; asserts that what is streamed is exactly its text."""
    job = local_job("a", "eager", ["x"], new_tokens, **options)
    rows = Completions(job, ByteTokenizer())
    streamed = ""
    for token in tokens:
        assert not rows.complete
        streamed += "".join(row.unsent() for _, row in rows.take_in([token]))
    streamed += "".join(row.unsent() for _, row in rows.end())
    assert not rows.end()
    if job.stream:
        assert streamed == rows.outputs()[0].text
    return rows.outputs()[0]


@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize(
    ("tokens", "new_tokens", "finish_reason"),
    [([A, B, LEAD_BYTE], 3, "length"), ([A, B, LEAD_BYTE, END], 9, "stop"), ([A, B, LEAD_BYTE], 9, "length")],
    ids=["length", "end of text", "interrupted"],
)
def test_an_incomplete_character_at_the_end_is_answered_however_the_row_ends(
    tokens: list[int], new_tokens: int, finish_reason: str, options: dict[str, object]
) -> None:
    output = complete(tokens, new_tokens, **options)
    assert (output.text, output.finish_reason) == ("ab\ufffd", finish_reason)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("tokens", "new_tokens", "stop", "text", "finish_reason"),
    [
        ([A, LEAD_BYTE, B, STOP], 9, ";", "a\ufffdb", "stop"),
        ([A, STOP_AND_LEAD_BYTE], 2, ";", "a", "stop"),
        ([A, STOP_AND_LEAD_BYTE], 9, ";", "a", "stop"),
        ([A, B, STOP], 9, ";;;", "ab;", "length"),
    ],
    ids=["incomplete before it", "incomplete behind it, at the end", "incomplete behind it", "interrupted"],
)
def test_what_follows_a_stop_string_is_left_out_and_nothing_else(
    tokens: list[int], new_tokens: int, stop: str, text: str, finish_reason: str, stream: bool
) -> None:
    output = complete(tokens, new_tokens, stop=[stop], stream=stream)
    assert (output.text, output.finish_reason) == (text, finish_reason)


def test_the_end_of_text_token_stops_a_row_unless_ignored() -> None:
    tokenizer = Tokenizer.load(TINY_FOLDER)
    for ignore, expected in ((False, ["stop", None]), (True, [None, None])):
        rows = Completions(local_job("a", "eager", ["x", "y"], 3, ignore_eos=ignore), tokenizer)
        rows.take_in([tokenizer.end_of_text, 5])
        assert [row.finish_reason for row in rows._rows] == expected
        assert not rows.complete
    rows = Completions(local_job("a", "eager", ["x", "y"], 3), tokenizer)
    for tokens in ([tokenizer.end_of_text, 5], [9, 6], [9, 7]):
        rows.take_in(tokens)
    assert rows.complete
    assert [output.token_ids for output in rows.outputs()] == [[tokenizer.end_of_text], [5, 6, 7]]


@pytest.mark.parametrize(
    ("prompt", "longest", "size"),
    [
        ("é" * 101, 2, "202 bytes is over the limit of 200"),
        ("é" * 3201, None, "6402 bytes is over the limit of 6400"),
        ([0] * 101, 2, "101 tokens is over the limit of 100"),
    ],
)
def test_a_prompt_that_cannot_fit_is_refused_before_it_is_encoded(
    prompt: str | list[int], longest: int | None, size: str
) -> None:
    unwilling: Any = SimpleNamespace(
        vocabulary=8, longest_token_bytes=longest, encode=lambda _: pytest.fail("it was encoded")
    )
    with pytest.raises(JobError, match=f"a prompt of {size} for a context of 100: shorten it"):
        encode_prompts([prompt], unwilling, 100, 1)


# Sampling after the step: which tokens are drawn, the nucleus, and what it costs


def test_a_nucleus_is_the_fewest_likeliest_tokens_that_reach_top_p() -> None:
    probabilities = torch.tensor([[0.1, 0.5, 0.15, 0.25], [0.97, 0.01, 0.01, 0.01]])
    for top_p, kept in ((0.7, [{1, 3}, {0}]), (0.76, [{1, 2, 3}, {0}]), (0.5, [{1}, {0}]), (0.0, [{1}, {0}])):
        likeliest, order = nucleus(probabilities, top_p)
        rows = zip(likeliest, order, strict=True)
        assert [set(tokens[left > 0].tolist()) for left, tokens in rows] == kept
        assert torch.equal(likeliest[likeliest > 0], probabilities.gather(-1, order)[likeliest > 0])


@pytest.mark.parametrize(("temperature", "timed"), [(0.0, 0), (1e-300, 0), (1.0, 1)])
def test_a_greedy_job_runs_no_operator_of_sampling(temperature: float, timed: int) -> None:
    job = local_job("a", "eager", ["x"], 9, temperature=temperature, seed=1)
    logits, readings = torch.full((4, 5), -100.0), Readings()
    logits[:, 3] = 100.0
    assert (
        Sampler(job, torch.device("cpu")).choose(logits, logits.argmax(dim=-1), readings).tolist() == [3] * 4
    )
    assert len(readings.sampling) == timed


LIMITS: list[dict[str, Any]] = [{}, {"top_k": 7}, {"top_p": 0.8}, {"top_k": 40, "top_p": 0.9}]


def sampler(rows: int, **options: Any) -> Sampler:
    return Sampler(local_job("a", "eager", ["x"] * rows, 9, **options), torch.device("cpu"))


def by_multinomial(logits: Tensor, seed: int, top_k: int = 10**6, top_p: float = 1.0) -> list[int]:
    """As torch draws from what the limits leave of `logits`, [rows, vocabulary], at a temperature of 0.7."""
    scores = logits.float() / 0.7
    threshold = scores.topk(min(top_k, scores.shape[-1])).values[:, -1:]
    probabilities = scores.where(scores >= threshold, -torch.inf).softmax(dim=-1)
    generator = torch.Generator().manual_seed(seed)
    if top_p == 1.0:
        return torch.multinomial(probabilities, 1, generator=generator).squeeze(-1).tolist()
    likeliest, order = nucleus(probabilities, top_p)
    return order.gather(-1, torch.multinomial(likeliest, 1, generator=generator)).squeeze(-1).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_a_seed_draws_what_multinomial_draws_and_nothing_of_probability_0(
    limits: dict[str, Any], dtype: torch.dtype
) -> None:
    logits = torch.randn(4, 500, generator=torch.Generator().manual_seed(1)).to(dtype)
    logits[:, ::2] = -torch.inf
    before, greedy = logits.clone(), logits.argmax(dim=-1)
    for seed in range(50):
        made = sampler(3, temperature=0.7, seed=seed, **limits)
        tokens = made.choose(logits, greedy, Readings()).tolist()
        assert tokens == [*by_multinomial(logits[:3], seed, **limits), greedy[3]]
        assert all(token % 2 for token in tokens)
    assert torch.equal(logits, before)


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("rows", [3, 4])
def test_no_operator_of_sampling_reads_the_device_or_copies_a_number_to_it(
    limits: dict[str, Any], rows: int
) -> None:
    logits = torch.randn(4, 500)
    made, greedy = sampler(rows, temperature=0.7, seed=1, **limits), logits.argmax(dim=-1)
    with profile(activities=[ProfilerActivity.CPU]) as session:
        made.choose(logits, greedy, Readings())
    names = {event.name for event in session.events()}
    assert "aten::exponential_" in names
    of_the_host = {"_local_scalar_dense", "nonzero", "lift_fresh", "scalar_tensor"}
    assert not names & {f"aten::{name}" for name in of_the_host}
