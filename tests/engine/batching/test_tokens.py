"""Whatever requests a request is merged with, its tokens are those that it gets alone."""

from __future__ import annotations

import random
from itertools import count
from time import perf_counter_ns

import msgspec
import pytest

from models.checkpoint import TINY_FOLDER
from models.tokenizer import Tokenizer
from service.engine.inbox import local_job
from service.records import Job, Token
from tests.engine.batching.merging import MODE_NAMES, TinyEngine

TEXTS = ["def mean(values):\n", "x", "import os\n" * 40, "class A:\n    pass\n", "for i in range(10):"]


@pytest.fixture(scope="module")
def engine() -> TinyEngine:
    return TinyEngine()


def random_job(name: str, mode: str, source: random.Random) -> Job:
    prompts = [source.choice(TEXTS) for _ in range(source.choice([1, 1, 1, 2, 3, 4]))]
    options: dict[str, object] = {"ignore_eos": source.random() < 0.5}
    if source.random() < 0.3:
        options |= {"temperature": 1.0, "seed": source.randrange(100), "top_k": source.choice([None, 5])}
    if source.random() < 0.3:
        options["stop"] = ["\n"]
    if source.random() < 0.2:
        options["min_tokens"] = 3
    return local_job(name, mode, prompts, source.choice([1, 2, 5, 9, 14]), **options)


def random_arrivals(seed: int, modes: tuple[str, ...]) -> dict[int, list[Job]]:
    source = random.Random(seed)
    arrivals: dict[int, list[Job]] = {}
    for number in range(10):
        job = random_job(f"job {number}", source.choice(modes), source)
        arrivals.setdefault(source.randrange(25), []).append(job)
    return arrivals


@pytest.mark.parametrize("batching", ["window", "continuous"])
@pytest.mark.parametrize(
    ("seed", "modes"), [(1, MODE_NAMES[:1]), (2, MODE_NAMES[1:]), (3, MODE_NAMES[1:]), (4, MODE_NAMES)]
)
def test_tokens_are_those_of_each_request_alone(
    engine: TinyEngine, seed: int, modes: tuple[str, ...], batching: str
) -> None:
    arrivals = random_arrivals(seed, modes)
    jobs = [job for each in arrivals.values() for job in each]
    served = engine.merged(arrivals, batching)
    assert {name: outcome.kind for name, outcome in served.outcomes.items()} == {job.id: "ok" for job in jobs}
    assert served.tokens == {job.id: engine.alone(job) for job in jobs}
    shared = [outcome.timings.shared for outcome in served.outcomes.values() if outcome.timings]
    assert any(work is not None and not work.alone for work in shared)


@pytest.mark.parametrize("batching", ["window", "continuous"])
def test_one_that_is_cancelled_in_the_middle_leaves_the_others_as_they_were(
    engine: TinyEngine, batching: str
) -> None:
    jobs = [local_job(str(n), "eager", [text], 20, ignore_eos=True) for n, text in enumerate(TEXTS[:4])]
    served = engine.merged({0: jobs}, batching, cancellations={8: {"1"}})
    cancelled = served.outcomes["1"]
    assert cancelled.kind == "cancelled"
    ended_with = cancelled.outputs[0].token_ids
    assert 0 < len(ended_with) < 20
    assert ended_with == engine.alone(jobs[1])[0][: len(ended_with)]
    for job in (jobs[0], *jobs[2:]):
        assert served.tokens[job.id] == engine.alone(job)


def test_one_that_waited_past_its_deadline_never_starts_and_keeps_nobody_waiting(engine: TinyEngine) -> None:
    jobs = [local_job(str(n), "inference_mode", ["x"], 30, ignore_eos=True) for n in range(2)]
    late = msgspec.structs.replace(local_job("late", "inference_mode", ["x"], 30), deadline_ns=1)
    served = engine.merged({0: jobs[:1], 4: [late, jobs[1]]})
    assert served.outcomes["late"].kind == "timeout"
    assert served.outcomes["late"].timings is None
    assert served.tokens["0"] == served.tokens["1"] == engine.alone(jobs[0])
    assert list(served.outcomes) == ["late", "0", "1"]


def test_one_whose_deadline_passes_among_others_ends_there_and_they_go_on(
    engine: TinyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [local_job(str(n), "inference_mode", ["x"], 20, ignore_eos=True) for n in range(2)]
    hour = 3_600_000_000_000
    first = msgspec.structs.replace(jobs[0], deadline_ns=perf_counter_ns() + hour)
    reads = count()

    def clock() -> int:
        return perf_counter_ns() + (2 * hour if next(reads) > 8 else 0)

    monkeypatch.setattr("service.engine.batching.perf_counter_ns", clock)
    served = engine.merged({0: [first, jobs[1]]})
    assert served.outcomes["0"].kind == "timeout"
    tokens = served.outcomes["0"].outputs[0].token_ids
    assert 0 < len(tokens) < 20
    assert served.tokens["1"] == engine.alone(jobs[1])
    assert tokens == served.tokens["1"][0][: len(tokens)]


def test_a_stream_is_the_text_of_its_own_row(engine: TinyEngine) -> None:
    jobs = [
        local_job(str(n), "inference_mode", [text], 8, ignore_eos=True, stream=True)
        for n, text in enumerate(TEXTS[:3])
    ]
    served = engine.merged({0: jobs[:2], 3: jobs[2:]})
    tokenizer = Tokenizer.load(TINY_FOLDER)
    for job in jobs:
        pieces = [m.text for m in served.queue.sent if isinstance(m, Token) and m.id == job.id]
        assert "".join(pieces) == tokenizer.decode(engine.alone(job)[0])
        assert len(pieces) > 1


def test_one_that_cannot_run_with_its_prompts_is_refused_alone(engine: TinyEngine) -> None:
    good = local_job("good", "eager", ["x"], 4, ignore_eos=True)
    long = local_job("long", "eager", [[1] * 511], 4)
    served = engine.merged({0: [good, long]})
    assert served.outcomes["long"].problem is not None
    assert served.outcomes["long"].problem.type == "prompt_too_long"
    assert served.tokens["good"] == engine.alone(good)
