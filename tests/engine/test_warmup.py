"""How modes become ready or fail, in which order, and from when on a split is claimed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from models.checkpoint import TINY_FOLDER
from models.tokenizer import Tokenizer
from service.engine import warmup
from service.engine.generation import Generator
from service.engine.inbox import LocalInbox, local_job
from service.engine.loop import Engine
from service.modes import Effect
from service.records import PHASES, EngineStatus, Job, ModeStatus, ToFront
from service.step import parity
from tests.engine.serving import MODE_NAMES, PROMPT, serve, settings

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("restored_globals")]


def test_a_mode_whose_warm_up_raises_fails_alone_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = warmup.Warmup._callables

    def failing(self: warmup.Warmup, configured: warmup.ConfiguredMode) -> object:
        if configured.mode.name == "inference_mode":
            raise RuntimeError("the backend gave up")
        return ready(self, configured)

    monkeypatch.setattr(warmup.Warmup, "_callables", failing)
    inbox = serve(tmp_path, [local_job(mode, mode, [PROMPT], 2) for mode in MODE_NAMES])
    assert inbox.modes["inference_mode"].state == "failed"
    assert "the backend gave up" in (inbox.modes["inference_mode"].detail or "")
    assert [outcome.kind for outcome in inbox.outcomes] == ["ok", "error"]


def test_modes_become_ready_in_the_order_in_which_they_are_asked_for(tmp_path: Path) -> None:
    became: list[str] = []

    def watch(message: object) -> None:
        if isinstance(message, ModeStatus) and message.state == "ready":
            became.append(message.mode)

    asked = ["inference_mode", "eager"]
    Engine(settings(tmp_path, modes=asked), LocalInbox([], watch)).run()
    assert list(dict.fromkeys(became)) == asked


def test_a_mode_out_of_parity_is_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, warming = parity.forced_logits, ""

    def wrong(*arguments: Any) -> torch.Tensor:
        return original(*arguments) + (1e-3 if warming == "inference_mode" else 0)

    def watch(message: object) -> None:
        nonlocal warming
        if isinstance(message, ModeStatus):
            warming = message.mode if message.state == "warming" else ""

    monkeypatch.setattr(parity, "forced_logits", wrong)
    inbox = LocalInbox([local_job("a", "inference_mode", [PROMPT], 2)], watch)
    Engine(settings(tmp_path), inbox).run()
    status = inbox.modes["inference_mode"]
    assert status.state == "failed"
    assert status.parity is not None
    assert not status.parity.passed
    assert inbox.modes["eager"].state == "ready"
    assert inbox.outcomes[0].kind == "error"


@pytest.mark.parametrize("dtype", ["bfloat16", "autocast-bfloat16"])
def test_each_precision_serves_in_parity(tmp_path: Path, dtype: str) -> None:
    inbox = serve(tmp_path, [local_job("a", "inference_mode", [PROMPT], 4, ignore_eos=True)], dtype=dtype)
    assert inbox.outcomes[0].kind == "ok"
    assert all(status.parity and status.parity.passed for status in inbox.modes.values())


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"device": "cuda"}, "--device cpu"),
        ({"dtype": "int8"}, "float32"),
        ({"model": "nowhere"}, "nowhere"),
        ({"prefill_chunk": 4096}, "context"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_a_remedy(
    tmp_path: Path, change: dict[str, object], remedy: str
) -> None:
    if change == {"device": "cuda"} and torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    with pytest.raises(ValueError, match=remedy):
        Engine(settings(tmp_path, **change), LocalInbox([]))


def test_a_hand_captured_mode_serves_on_a_cpu_and_says_what_it_runs_as(tmp_path: Path) -> None:
    modes = ["inference_mode", "cuda-graph"]
    jobs = [local_job(mode, mode, [PROMPT], 4, ignore_eos=True) for mode in modes]
    inbox = serve(tmp_path, jobs, modes=modes, batch_sizes=[1])
    plain, captured = inbox.outcomes
    assert (captured.kind, captured.mode, captured.effective) == ("ok", "cuda-graph", "inference_mode")
    assert "no CUDA graphs" in (captured.reason or "")
    assert captured.outputs == plain.outputs
    assert inbox.modes["cuda-graph"].graph_captures == 0


FIRST = MODE_NAMES[0]
"""The first that becomes ready."""


def test_before_the_engine_is_warm_every_step_has_a_split_and_a_sampled_request_ran_at_every_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened, statuses, ran = list[str](), list[EngineStatus](), list[Job]()
    run_job = Generator.run

    def watch(message: ToFront) -> None:
        if isinstance(message, ModeStatus) and message.state == "ready":
            happened.append(f"{message.mode} {'split' if message.splits else 'ready'}")
        elif isinstance(message, EngineStatus) and message.warm:
            happened.append("warm")
            statuses.append(message)

    def noted(self: Generator, job: Job, *rest: object) -> None:
        ran.append(job)
        run_job(self, job, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Generator, "run", noted)
    inbox = LocalInbox([local_job("client", FIRST, [PROMPT], 2)], watch)
    Engine(settings(tmp_path), inbox).run()
    in_order = [f"{mode} {what}" for what in ("ready", "split") for mode in MODE_NAMES]
    assert list(dict.fromkeys(happened)) == [*in_order, "warm"]
    for status in inbox.modes.values():
        found = {(split.phase, split.batch): split for split in status.splits}
        assert found.keys() == {(phase, batch) for phase in PHASES for batch in (1, 2)}
        assert all(split.newest.total > 0 and split.step_seconds > 0 for split in found.values())
    *own, client = ran
    assert [client.id] == [outcome.id for outcome in inbox.outcomes] == ["client"]
    assert {len(job.prompts) for job in own} == {1, 2}
    assert all(job.temperature > 0 for job in own)
    for option in ("top_k", "top_p", "seed"):
        assert any(getattr(job, option) for job in own), option
    warm = statuses[0]
    assert {(one.phase, one.batch) for one in warm.attention} == found.keys()
    assert all(one.backends == ["flash_attention"] for one in warm.attention)
    assert all(one.parity and one.parity.passed for one in warm.attention)
    assert warm.prompt_bytes == warm.context * (Tokenizer.load(TINY_FOLDER).longest_token_bytes or 0)


def test_a_mode_that_replays_graphs_is_ready_only_when_that_is_proved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    replaying, plain = MODE_NAMES
    effect, serving = warmup.Warmup.effect, warmup.Warmup.serving

    def of(self: warmup.Warmup, configured: warmup.ConfiguredMode) -> Effect:
        return replace(effect(self, configured), graph_replay=configured.mode.name == replaying)

    def captured(self: warmup.Warmup, configured: warmup.ConfiguredMode) -> Iterator[None]:
        happened.append(f"{configured.mode.name} captured")
        return serving(self, configured)

    def watch(message: ToFront) -> None:
        if isinstance(message, ModeStatus) and message.state == "ready" and not message.splits:
            happened.append(f"{message.mode} ready")

    monkeypatch.setattr(warmup.Warmup, "effect", of)
    monkeypatch.setattr(warmup.Warmup, "serving", captured)
    monkeypatch.setattr(warmup, "verify_graph_replay", lambda *_: happened.append("proved"))
    Engine(settings(tmp_path, batch_sizes=[1]), LocalInbox([], watch)).run()
    proved = [f"{replaying} captured", "proved", f"{replaying} ready"]
    assert happened == [*proved, f"{plain} captured", f"{plain} ready"]
