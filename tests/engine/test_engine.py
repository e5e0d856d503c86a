"""The engine without a front: jobs in, outcomes out."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, pairwise
from pathlib import Path

import msgspec
import pytest
import torch

from service.engine import loop, parts
from service.engine.generation import Generator
from service.engine.inbox import LocalInbox, local_job
from service.engine.loop import Engine
from service.engine.outcome import ran_as
from service.engine.warmup import ConfiguredMode
from service.modes import MODES
from service.records import EngineStatus, ModeStatus, Outcome, StepProfile, Timings, ToFront
from tests.engine.serving import MODE_NAMES, PROMPT, serve, settings

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("restored_globals")]


def timings_of(inbox: LocalInbox, index: int = 0) -> Timings:
    timings = inbox.outcomes[index].timings
    assert timings is not None
    return timings


def test_every_job_gets_one_outcome_in_order_with_a_split_of_its_wall_time(tmp_path: Path) -> None:
    jobs = [local_job(f"{m}{n}", m, [PROMPT] * n, 5, ignore_eos=True) for m in MODE_NAMES for n in (1, 2)]
    inbox = serve(tmp_path, jobs)
    assert [outcome.id for outcome in inbox.outcomes] == [job.id for job in jobs]
    for index in range(len(jobs)):
        timings = timings_of(inbox, index)
        for phase in (timings.prefill, timings.decode):
            assert phase.wall_seconds is not None
            assert phase.dispatch_seconds is not None
            assert phase.kernel_seconds is not None
            assert 0 <= phase.dispatch_seconds <= phase.wall_seconds
            assert phase.dispatch_seconds + phase.kernel_seconds == pytest.approx(phase.wall_seconds)
        assert timings.taken_ns < (timings.first_token_ns or 0) < timings.done_ns


def test_a_mode_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path) -> None:
    outcome = serve(tmp_path, [local_job("a", "compiled", [PROMPT], 2)]).outcomes[0]
    assert outcome.kind == "error"
    assert outcome.problem is not None
    assert outcome.problem.type == "mode_not_ready"
    assert "eager" in outcome.problem.message
    assert outcome.timings is None


def test_a_job_whose_deadline_passed_in_the_queue_never_starts(tmp_path: Path) -> None:
    late = msgspec.structs.replace(local_job("a", "eager", [PROMPT], 2), deadline_ns=1)
    outcome = serve(tmp_path, [late]).outcomes[0]
    assert (outcome.kind, outcome.timings) == ("timeout", None)


def test_one_request_in_so_many_is_profiled_and_any_that_requests_it(tmp_path: Path) -> None:
    jobs = [local_job(str(n), "eager", [PROMPT], 4, ignore_eos=True, profile=n == 2) for n in range(6)]
    inbox = serve(tmp_path, jobs, profile_every=4)
    profiled = [outcome.profile is not None for outcome in inbox.outcomes]
    assert profiled == [False, False, True, True, False, False]
    profile = inbox.outcomes[2].profile
    assert profile is not None
    assert [(entry.phase, entry.steps) for entry in profile] == [("prefill", 1), ("decode", 3)]
    assert all(entry.operators > 50 and entry.kernels is None for entry in profile)
    assert {path.name for path in (tmp_path / "traces").iterdir()} >= {"2.json", "2.trace.json.gz", "3.json"}


def test_an_id_cannot_lead_a_trace_out_of_its_folder(tmp_path: Path) -> None:
    serve(tmp_path / "cache", [local_job("../../out", "eager", [PROMPT], 2, profile=True)])
    assert list(tmp_path.rglob("*.trace.json.gz")) == [
        tmp_path / "cache" / "traces" / ".._.._out.trace.json.gz"
    ]


def test_without_instrumentation_steps_are_counted_and_nothing_is_claimed_of_them(tmp_path: Path) -> None:
    inbox = serve(tmp_path, [local_job("a", "eager", [PROMPT], 4, ignore_eos=True)], instrumentation="off")
    timings = timings_of(inbox)
    assert timings.decode.steps == 3
    decode = timings.decode
    assert decode.wall_seconds is decode.dispatch_seconds is decode.kernel_seconds is None
    assert timings.dispatch_source is timings.kernel_source is None


def compiled_for_another_shape() -> Callable[[], object]:
    """A call that needs a recompilation."""
    compiled = torch.compile(lambda x: x + 1, backend="eager", dynamic=False)
    compiled(torch.ones(2))
    return lambda: compiled(torch.ones(3))


def quoting() -> Callable[[], object]:
    """A call that fails for another reason, with the same text."""

    def fail() -> None:
        raise ValueError("the stance is 'fail_on_recompile'")

    return fail


@pytest.mark.compiles
@pytest.mark.parametrize(("prepare", "recompiles"), [(compiled_for_another_shape, 1), (quoting, 0)])
def test_a_recompilation_while_serving_fails_its_job_and_is_counted_and_nothing_else_is(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prepare: Callable[[], Callable[[], object]],
    recompiles: int,
) -> None:
    fault = prepare()
    monkeypatch.setattr(Generator, "run", lambda *_: fault())
    inbox = serve(tmp_path, [local_job("a", "eager", [PROMPT], 2)])
    assert inbox.outcomes[0].kind == "error"
    assert inbox.modes["eager"].recompiles == recompiles
    assert inbox.modes["inference_mode"].recompiles == 0


def test_a_sample_without_its_graph_launch_is_not_reported_under_the_modes_own_name() -> None:
    status = ModeStatus(mode="reduce-overhead", removes="", state="ready", effective="reduce-overhead")
    configured = ConfiguredMode(MODES["reduce-overhead"], status)

    def profile(launches: float) -> list[StepProfile]:
        return [StepProfile(phase="decode", steps=3, operators=1, copies=0, graph_launches=launches)]

    assert ran_as(configured, profile(1.0)) == ("reduce-overhead", None)
    assert ran_as(configured, profile(0.0)) == ("compiled", "graph_skipped")
    assert ran_as(configured, None) == ("reduce-overhead", None)


@pytest.mark.parametrize(("seconds", "announced"), [(0.0, True), (3600.0, False)])
def test_device_memory_that_changed_is_announced_between_jobs_and_no_more_often_than_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, announced: bool
) -> None:
    sizes = count()
    sent: list[ToFront] = []
    monkeypatch.setattr(parts, "memory", lambda _: {"allocated_current": next(sizes)})
    monkeypatch.setattr(loop, "memory", lambda _: {"allocated_current": next(sizes)})
    monkeypatch.setattr(loop, "NEWS_SECONDS", seconds)
    jobs = [local_job(str(n), "inference_mode", [PROMPT], 2) for n in range(2)]
    inbox = LocalInbox(jobs, sent.append)
    Engine(settings(tmp_path, modes=["inference_mode"], batch_sizes=[1]), inbox).run()
    statuses = [message for message in sent if isinstance(message, EngineStatus)]
    whole = [message for message in sent if not isinstance(message, ModeStatus)]
    after_a_job = sum(type(one) is Outcome and type(other) is EngineStatus for one, other in pairwise(whole))
    assert after_a_job == (2 if announced else 0)
    assert (len(statuses) > 4) == announced
    assert [status.warm for status in statuses] == sorted(status.warm for status in statuses)


def test_unchanged_memory_and_a_device_without_any_are_not_announced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "NEWS_SECONDS", 0.0)
    for memory in (None, {"allocated_current": 7}):
        monkeypatch.setattr(parts, "memory", lambda _, current=memory: current)
        monkeypatch.setattr(loop, "memory", lambda _, current=memory: current)
        sent: list[ToFront] = []
        inbox = LocalInbox([local_job("a", "inference_mode", [PROMPT], 2)], sent.append)
        Engine(settings(tmp_path, modes=["inference_mode"], batch_sizes=[1]), inbox).run()
        statuses = [message for message in sent if isinstance(message, EngineStatus)]
        assert [status.warm for status in statuses] == [False, True]
