"""Who runs with whom, in which bucket; and that each request's tokens are those that it gets alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import msgspec
import pytest

from models.checkpoint import TINY_FOLDER
from models.tokenizer import Tokenizer
from service.engine.inbox import local_job
from service.engine.text import Completion
from service.records import Begun, Job, Token
from service.step.callables import Step
from tests.engine.merging import MODE_NAMES, Served, TinyEngine
from tests.engine.serving import PROMPT, serve


@pytest.fixture(scope="module")
def engine() -> TinyEngine:
    return TinyEngine()


def job(name: str, mode: str = "inference_mode", rows: int = 1, count: int = 6, **options: object) -> Job:
    return local_job(name, mode, ["x"] * rows, count, ignore_eos=True, **options)


def begun(served: Served) -> list[list[str]]:
    """Who left the queue together."""
    return [message.ids for message in served.queue.sent if isinstance(message, Begun)]


def test_what_waits_is_merged_and_nobody_waits_for_the_last_to_end(engine: TinyEngine) -> None:
    served = engine.merged({0: [job("long", count=9), job("short", count=3), job("middle", count=5)]})
    assert begun(served) == [["long", "short", "middle"]]
    assert list(served.outcomes) == ["short", "middle", "long"]


def test_a_step_runs_in_the_smallest_bucket_that_holds_its_rows(engine: TinyEngine) -> None:
    served = engine.merged({0: [job("a", count=9)], 3: [job("b", count=3), job("c", count=3)]})
    rows = [rows for rows, length in served.shapes if length == 1]
    assert (rows[0], max(rows), rows[-1]) == (1, 4, 1)
    assert served.outcomes["a"].batch_bucket == 4


def test_who_runs_goes_on_however_many_come_that_end_with_their_prefill(engine: TinyEngine) -> None:
    """They leave their rows at once, so that free rows alone bound nothing."""
    short = [job(str(number), count=1) for number in range(40)]
    served = engine.merged({0: [job("long")], 1: short})
    # Five steps, before each a prefill in a bucket of two rows.
    assert list(served.outcomes).index("long") <= 5 * 2
    assert served.tokens["long"] == engine.alone(job("long"))


@pytest.mark.parametrize(
    ("rows", "groups"),
    [
        ([1, 1], [["0", "1"]]),
        ([1] * 6, [["0", "1", "2", "3"], ["4", "5"]]),
        ([1, 3], [["0", "1"]]),
        ([3, 2], [["0"], ["1"]]),
        ([5, 1], [["0", "1"]]),
    ],
)
def test_those_who_wait_are_prefilled_together_as_far_as_a_bucket_is_free(
    rows: list[int], groups: list[list[str]]
) -> None:
    """Beside one that runs a bucket of 4 is; five rows need that of 16, and wait until it has ended."""
    engine = TinyEngine(buckets=[1, 4, 16])
    jobs = [job(str(number), rows=count) for number, count in enumerate(rows)]
    served = engine.merged({0: [job("runs")], 2: jobs})
    assert begun(served) == [["runs"], *groups]
    assert served.tokens == {one.id: engine.alone(one) for one in [job("runs"), *jobs]}


def test_a_request_of_another_mode_waits_for_its_turn_and_is_not_overtaken(engine: TinyEngine) -> None:
    arrivals = {0: [job("a", count=9)], 3: [job("b", "eager", count=2), job("c", count=2)]}
    served = engine.merged(arrivals)
    assert list(served.outcomes) == ["a", "b", "c"]
    assert begun(served) == [["a"], ["b"], ["c"]]


@pytest.mark.parametrize("option", ["alone", "profile", "sample"])
def test_who_is_to_run_alone_shares_no_step(engine: TinyEngine, option: str) -> None:
    served = engine.merged({0: [job("a", count=9)], 2: [job("b", **{option: True}), job("c")]})
    assert begun(served) == [["a"], ["b"], ["c"]]
    timings = served.outcomes["b"].timings
    assert timings is not None
    assert timings.shared is None


def failing_at(number: int, prefill: bool, rows: int, error: str = "no such step") -> Callable[[Step], Step]:
    """Has the `number`-th step of `rows` and of this phase fail."""
    calls = 0

    def wrap(step: Step) -> Step:
        def run(*arguments: Any) -> Any:
            nonlocal calls
            meant = arguments[0].shape[0] == rows and (arguments[0].shape[1] > 1) == prefill
            calls += meant
            if meant and calls == number:
                raise RuntimeError(error)
            return step(*arguments)

        return run

    return wrap


def test_a_failing_step_fails_all_that_were_in_it_and_none_that_come_later() -> None:
    engine = TinyEngine(wrap=failing_at(2, prefill=False, rows=2))
    served = engine.merged({0: [job("a"), job("b")], 12: [job("c")]})
    assert served.kinds == {"a": "error", "b": "error", "c": "ok"}
    assert len(served.outcomes["a"].outputs[0].token_ids) == 2


def test_a_prefill_that_fails_fails_those_that_join_and_none_that_run() -> None:
    engine = TinyEngine(wrap=failing_at(2, prefill=True, rows=1))
    served = engine.merged({0: [job("a", count=20)], 4: [job("b")], 9: [job("c")]})
    assert served.kinds == {"a": "ok", "b": "error", "c": "ok"}
    assert served.tokens["a"] == engine.alone(job("a", count=20))
    assert served.tokens["c"] == engine.alone(job("c"))


def test_a_text_that_fails_fails_its_own_request_and_none_beside_it(
    engine: TinyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    examine = Completion.examine

    def failing(self: Completion) -> None:
        if self._job.id == "b":
            raise ValueError("no such character")
        examine(self)

    with monkeypatch.context() as patched:
        patched.setattr(Completion, "examine", failing)
        served = engine.merged({0: [job("a"), job("b", count=3), job("c")]})
    assert served.kinds == {"a": "ok", "b": "error", "c": "ok"}
    assert "no such character" in str(served.outcomes["b"].problem)
    assert served.tokens["a"] == served.tokens["c"] == engine.alone(job("a"))


@pytest.mark.parametrize("prefill", [True, False])
def test_what_loses_the_device_ends_the_engine(prefill: bool) -> None:
    lost = failing_at(1, prefill, rows=2, error="CUDA error: an illegal memory access was encountered")
    with pytest.raises(RuntimeError, match="illegal memory access"):
        TinyEngine(wrap=lost).merged({0: [job("a"), job("b")]})


TEXTS = ["def mean(values):\n", "x", "import os\n" * 40, "class A:\n    pass\n", "for i in range(10):"]


def random_arrivals(seed: int, modes: tuple[str, ...]) -> dict[int, list[Job]]:
    source = random.Random(seed)
    arrivals: dict[int, list[Job]] = {}
    for number in range(10):
        mode = source.choice(modes)
        prompts = [source.choice(TEXTS) for _ in range(source.choice([1, 1, 1, 2, 3, 4]))]
        options: dict[str, object] = {"ignore_eos": source.random() < 0.5}
        if source.random() < 0.3:
            options |= {"temperature": 1.0, "seed": source.randrange(100), "top_k": source.choice([None, 5])}
        if source.random() < 0.3:
            options["stop"] = ["\n"]
        one = local_job(f"job {number}", mode, prompts, source.choice([1, 2, 5, 9, 14]), **options)
        arrivals.setdefault(source.randrange(25), []).append(one)
    return arrivals


@pytest.mark.parametrize(
    ("seed", "modes"), [(1, MODE_NAMES[:1]), (2, MODE_NAMES[1:]), (3, MODE_NAMES[1:]), (4, MODE_NAMES)]
)
def test_tokens_are_those_of_each_request_alone(
    engine: TinyEngine, seed: int, modes: tuple[str, ...]
) -> None:
    arrivals = random_arrivals(seed, modes)
    jobs = [job for each in arrivals.values() for job in each]
    served = engine.merged(arrivals)
    assert served.kinds == {job.id: "ok" for job in jobs}
    assert served.tokens == {job.id: engine.alone(job) for job in jobs}
    shared = [outcome.timings.shared for outcome in served.outcomes.values() if outcome.timings]
    assert any(work is not None and not work.alone for work in shared)


def test_one_that_is_cancelled_in_the_middle_leaves_the_others_as_they_were(engine: TinyEngine) -> None:
    jobs = [local_job(str(n), "eager", [text], 20, ignore_eos=True) for n, text in enumerate(TEXTS[:4])]
    served = engine.merged({0: jobs}, cancellations={8: {"1"}})
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


OF_BOTH_MODES = [
    local_job(f"{mode}{n}", mode, [PROMPT], 4 + 3 * n, ignore_eos=True, profile=n == 2)
    for mode in ("eager", "inference_mode")
    for n in range(4)
]


@pytest.mark.slow
@pytest.mark.usefixtures("restored_globals")
def test_merged_requests_are_answered_as_they_are_alone(tmp_path: Path) -> None:
    merged = serve(tmp_path, OF_BOTH_MODES, batching="continuous")
    tokens = {outcome.id: outcome.outputs[0].token_ids for outcome in merged.outcomes}
    assert tokens.keys() == {job.id for job in OF_BOTH_MODES}
    # All have the same prompt, and those of index 2 run alone, under the profiler.
    assert tokens["eager2"] == tokens["inference_mode2"]
    assert all(longer[: len(own)] == own for own in tokens.values() for longer in [tokens["eager3"]])
    assert merged.modes["eager"].state == "ready"
    shared = {outcome.id: outcome.timings.shared for outcome in merged.outcomes if outcome.timings}
    assert all(work is None for name, work in shared.items() if name.endswith("2"))
    assert all(work is not None and work.rows > 1 for name, work in shared.items() if name[-1] in "01")
