"""A whole request in this process: measured, only answered, in a minimal loop; the work between its steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import accumulate, count
from pathlib import Path

import pytest
import torch

from service.engine.generation import JobResult
from service.measure.cases import Bench
from service.proof import requests as requests_module
from service.proof.requests import MinimalLoop, RequestPath, SampledRequests, gaps_seconds
from service.proof.running_service import NEW_TOKENS
from service.records import EngineSettings

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


def exposed(path: RequestPath, name: str) -> float:
    """The value of a sample of /metrics; 0 where it is not there."""
    text, _ = path.metrics.render("text/plain", Counter(), 0)
    lines = [line for line in text.decode().splitlines() if line.startswith(name)]
    return float(lines[0].split()[-1]) if lines else 0.0


OK = f'launchbound_requests_total{{mode="{MODE}",outcome="ok"}}'


def test_a_measured_request_has_meters_samples_and_an_entry_in_the_metrics(
    bench: Bench, tmp_path: Path
) -> None:
    path = RequestPath(bench, MODE, tmp_path)
    for _ in range(REQUESTS):
        timing = path.measured()
    assert timing.engine.decode.steps == NEW_TOKENS - 1
    assert timing.engine.decode.wall_seconds is not None
    assert timing.engine.decode.samples_of == "traffic"
    assert exposed(path, OK) == REQUESTS


def test_an_unmeasured_request_gives_the_same_answer_and_leaves_all_that_out(
    bench: Bench, tmp_path: Path
) -> None:
    path = RequestPath(bench, MODE, tmp_path)
    timing = path.unmeasured()
    assert timing.engine.decode.steps == NEW_TOKENS - 1
    assert timing.engine.decode.wall_seconds is None
    assert timing.engine.decode.samples_of is None
    assert exposed(path, OK) == 0
    assert timing.outcome.outputs == path.measured().outcome.outputs


def test_the_minimal_loop_gives_the_text_of_a_measured_request(bench: Bench, tmp_path: Path) -> None:
    text = MinimalLoop(bench, MODE).run()
    assert text == RequestPath(bench, MODE, tmp_path).measured().outcome.outputs[0].text
    assert len(text) >= NEW_TOKENS / 2


def test_requests_in_a_minimal_loop_have_samples_of_both_phases_and_of_nothing_between(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels: list[int] = []
    run = MinimalLoop.run

    def noted(loop: MinimalLoop, new_tokens: int = NEW_TOKENS) -> str:
        text = run(loop, new_tokens)
        labels.append(requests._sampler.label.value)
        return text

    monkeypatch.setattr(MinimalLoop, "run", noted)
    requests = SampledRequests(settings, [0], [MODE])
    monkeypatch.setattr(requests_module, "perf_counter", count().__next__)
    found = requests.run(MODE, NEW_TOKENS, REQUESTS)
    assert all(counts.kernel + counts.host > 0 for counts in found.values())
    assert labels == [0] * (REQUESTS + 1)


def test_own_work_is_the_mean_gap_between_two_looks_for_cancellations_less_the_wait_for_the_device() -> None:
    begins = [0, 110_000, 230_000, 340_000, 460_000]
    calls = [(begin, begin + 100_000) for begin in begins]
    assert gaps_seconds(calls, JobResult()) == pytest.approx(15e-6)
    waiting = JobResult()
    waiting.decode.wait = [5_000] * 5
    assert gaps_seconds(calls, waiting) == pytest.approx(10e-6)


def test_a_look_in_every_fifth_gap_counts_a_fifth_in_own_work() -> None:
    gaps = [10_000, 10_000, 10_000, 10_000, 60_000] * 6
    step = 1_980_000
    begins = [0, *accumulate(gap + step for gap in gaps)]
    calls = [(begin, begin + step) for begin in begins]
    assert gaps_seconds(calls, JobResult()) == pytest.approx(20e-6)
