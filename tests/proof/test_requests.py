"""Whole requests: in this process, measured or in a minimal loop; and over HTTP, on made-up answers."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from models.config import CONFIGS
from models.opening import resolve
from models.transformer import Transformer
from service.engine.generation import Generator
from service.engine.inbox import LocalInbox, local_job
from service.engine.job import JobResult
from service.engine.loop import Engine
from service.front.settings import Settings
from service.measure.cases import Bench
from service.proof import inline_server, over_http, split
from service.proof.rows import NEW_TOKENS, PROMPT, run_check
from service.records import PHASES, EngineSettings, SampleCounts
from service.step.buffers import allocate
from service.step.meters import new_meter
from tests.support.small_models import SMALL, quiet

MODE = "inference_mode"
REQUESTS = 20


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineSettings]:
    threads = torch.get_num_threads()
    folder = str(tmp_path_factory.mktemp("cache"))
    yield EngineSettings(
        address="", device="cpu", threads=1, cache_folder=folder, modes=[MODE], batch_sizes=[1]
    )
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def bench(settings: EngineSettings) -> Bench:
    return Bench(settings)


def exposed(path: split.RequestPath, name: str) -> float:
    """The value of a sample of /metrics; 0 where it is not there."""
    text, _ = path.metrics.render("text/plain", Counter(), 0)
    lines = [line for line in text.decode().splitlines() if line.startswith(name)]
    return float(lines[0].split()[-1]) if lines else 0.0


OK = f'launchbound_requests_total{{mode="{MODE}",outcome="ok"}}'


def test_a_measured_request_has_meters_samples_and_an_entry_in_the_metrics(
    bench: Bench, tmp_path: Path
) -> None:
    path = split.RequestPath(bench, MODE, tmp_path)
    assert path.busy_seconds(REQUESTS - 1) > 0
    timing = path.measured()
    assert timing.engine.decode.steps == NEW_TOKENS - 1
    assert timing.engine.decode.wall_seconds is not None
    assert timing.engine.decode.samples_of == "traffic"
    assert exposed(path, OK) == REQUESTS


def test_an_unmeasured_request_gives_the_same_answer_and_leaves_all_that_out(
    bench: Bench, tmp_path: Path
) -> None:
    path = split.RequestPath(bench, MODE, tmp_path)
    timing = path.unmeasured()
    assert timing.engine.decode.steps == NEW_TOKENS - 1
    assert timing.engine.decode.wall_seconds is None
    assert timing.engine.decode.samples_of is None
    assert exposed(path, OK) == 0
    assert timing.outcome.outputs == path.measured().outcome.outputs


def test_the_minimal_loop_gives_the_text_of_a_measured_request(bench: Bench, tmp_path: Path) -> None:
    text = split.MinimalLoop(bench, MODE).run()
    assert text == split.RequestPath(bench, MODE, tmp_path).measured().outcome.outputs[0].text
    assert len(text) >= NEW_TOKENS / 2


def test_requests_in_a_minimal_loop_have_samples_of_both_phases_and_of_nothing_between(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels: list[int] = []
    run = split.MinimalLoop.run

    def noted(loop: split.MinimalLoop, new_tokens: int = NEW_TOKENS) -> str:
        text = run(loop, new_tokens)
        labels.append(requests._sampler.label.value)
        return text

    monkeypatch.setattr(split.MinimalLoop, "run", noted)
    requests = split.SampledRequests(settings, [0], [MODE])
    monkeypatch.setattr(split, "perf_counter", count().__next__)
    found = requests.run(MODE, NEW_TOKENS, REQUESTS)
    assert all(counts.kernel + counts.host > 0 for counts in found.values())
    assert labels == [0] * (REQUESTS + 1)


def test_a_step_is_given_a_padded_prompt_and_the_used_part_of_the_cache() -> None:
    """Else what is called kernel time would be padding of our own."""
    config = replace(SMALL, context=512, vocabulary=CONFIGS["tiny"].vocabulary)
    buffers = allocate(Transformer(config, 2), [2], 64)
    seen: dict[str, set[tuple[int, int]]] = {"prefill": set(), "decode": set()}

    def step(phase: str, tokens: torch.Tensor, *others: Any) -> tuple[torch.Tensor, torch.Tensor]:
        seen[phase].add((tokens.shape[1], others[-1][0][0].shape[1]))
        return torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64)

    steps: Any = {(phase, 2): partial(step, phase) for phase in seen}
    generator = Generator(resolve("tiny").tokenizer(config.vocabulary), buffers, 512, LocalInbox([]))
    job = local_job("x", MODE, [[0] * 30, [0] * 30], 32, ignore_eos=True)
    generator.run(job, steps, JobResult(), new_meter(torch.device("cpu"), 2, "off"))
    assert seen == {"prefill": {(32, 64)}, "decode": {(1, 64)}}


# What the checks over HTTP measure of a service, on made-up answers


MODES = ["eager", "compiled"]


class MadeUpService:
    """In place of a `RunningService`: every request takes `latency`, every decode step a thousandth of it."""

    settings = Settings(modes=MODES)
    cpus = sorted(os.sched_getaffinity(0))[:1]
    folder: Path

    def connection(self) -> MadeUpService:
        return self

    def __enter__(self) -> MadeUpService:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to close."""

    def generate(self, mode: str, new_tokens: int = 32) -> dict[str, Any]:
        phases = {
            "prefill": {"wall_seconds": 4e-3, "steps": 1},
            "decode": {"wall_seconds": 31e-3, "steps": 31},
        }
        return {"latency_seconds": 0.04, **phases}

    def answer(self, mode: str) -> tuple[bytes, float]:
        return json.dumps({"timings": {"mode": mode}}).encode(), 0.04


def test_what_the_service_adds_is_its_latency_less_its_steps_beside_a_real_inline_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(over_http, "ADDED_ROUNDS", 3)
    monkeypatch.setattr(over_http, "ADDED_MODE", "eager")
    monkeypatch.setattr(MadeUpService, "folder", tmp_path, raising=False)
    monkeypatch.setattr(MadeUpService, "settings", Settings(modes=MODES, cache_folder=tmp_path / "cache"))
    found = over_http.measure_added(MadeUpService(), quiet)  # type: ignore[arg-type]
    assert found["service"] == pytest.approx([5e-3] * 3)
    assert len(found["inline"]) == 3
    assert all(0 < seconds < 1 for seconds in found["inline"])


@pytest.mark.usefixtures("restored_globals")
def test_the_inline_server_returns_what_the_engine_does(settings: EngineSettings) -> None:
    inbox = LocalInbox([local_job("a", MODE, [PROMPT], 8, ignore_eos=True)])
    Engine(settings, inbox).run()
    (outcome,) = inbox.outcomes
    own = inline_server.Generator(settings)
    found = own.run(PROMPT, 8)
    assert found["outputs"] == [
        {"text": output.text, "token_ids": output.token_ids} for output in outcome.outputs
    ]
    walls = [found["timings"][phase]["wall_seconds"] for phase in PHASES]
    assert min(walls) > 0
    assert own.run(PROMPT, 8)["outputs"] == found["outputs"]


class Sampling(MadeUpService):
    """Answers in which three quarters of a decode are kernel; prefill's samples are always of the traffic."""

    cpus = (1,)

    def __init__(
        self, samples_of: str = "request", no_samples: str | None = None, wall_seconds: float = 4.0
    ) -> None:
        self._wall_seconds = wall_seconds
        self._samples_of, self.no_samples = samples_of, no_samples
        self.asked: list[tuple[str, int, bool]] = []

    def generate(self, mode: str, new_tokens: int = 32, sample: bool = False) -> dict[str, Any]:
        self.asked.append((mode, new_tokens, sample))
        own = self._samples_of if sample and new_tokens > 1 else "traffic"
        counts = {"kernel_samples": 1500, "host_samples": 500, "samples_of": own}
        phase = {"wall_seconds": self._wall_seconds, "kernel_seconds": 0.75 * self._wall_seconds, **counts}
        return {"prefill": {**phase, "samples_of": "traffic"}, "decode": phase}


class InProcess:
    """In place of `SampledRequests`: `kernel` of 100 samples."""

    kernel = 75

    def __init__(self, *_: object) -> None:
        """No step is built."""

    def run(self, mode: str, new_tokens: int, seconds: float) -> dict[str, SampleCounts]:
        counts = SampleCounts(kernel=self.kernel, host=100 - self.kernel)
        return {"prefill": counts, "decode": counts}


@pytest.mark.parametrize(("kernel", "verdict"), [(75, "pass"), (60, "fail")])
def test_what_a_service_answers_is_compared_with_what_is_sampled_here(
    kernel: int, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.proof.split.SampledRequests", InProcess)
    monkeypatch.setattr(InProcess, "kernel", kernel)
    monkeypatch.setattr(over_http, "perf_counter", count().__next__)
    service = Sampling()
    rows = run_check("x", over_http.CHECKS["served-samples"], service, quiet)[0]
    assert {row.verdict for row in rows} == {verdict}
    assert [row.name.partition(": ")[2] for row in rows] == [
        f"{kind.name}, {mode}, {kind.phase}, batch 1" for kind in over_http.KINDS for mode in MODES
    ]
    assert {asked[1:] for asked in service.asked} == {(32, False), (1, True), (384, True)}


@pytest.mark.parametrize(
    ("service", "verdict", "why"),
    [
        (Sampling(no_samples="no compiler here"), "not measurable here", "no compiler here"),
        (
            Sampling(samples_of="traffic", wall_seconds=0.1),
            "not measurable here",
            "a request of 384 tokens in eager has too few samples",
        ),
        (
            Sampling(samples_of="traffic"),
            "fail",
            "broke: ValueError: eager answers the traffic's split with some 3988 samples of its own",
        ),
    ],
)
def test_where_a_service_has_no_samples_of_its_own_the_row_says_why(
    service: Sampling, verdict: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.proof.split.SampledRequests", InProcess)
    monkeypatch.setattr(over_http, "SERVED_MODES", ("eager",))
    monkeypatch.setattr(over_http, "perf_counter", count().__next__)
    (row,) = run_check("x", over_http.CHECKS["served-samples"], service, quiet)[0]
    assert (row.verdict, row.note) == (verdict, why)


def test_an_engine_that_does_not_start_fails_the_check_instead_of_leaving_a_row_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(service: object, log: object) -> AbstractContextManager[object]:
        raise RuntimeError("the engine ended (until it is warm)")

    monkeypatch.setattr(over_http, "bare_engine", refuse)
    (row,) = run_check("parts", over_http.CHECKS["parts"], Sampling(), quiet)[0]
    assert (row.name, row.verdict) == ("parts", "fail")
    assert "the engine ended" in row.note
