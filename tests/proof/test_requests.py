"""A whole request in this process: measured, only answered, in a minimal loop; what its steps are given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from models.config import CONFIGS
from models.opening import open_tokenizer
from models.transformer import Transformer
from service.engine.generation import Generator, JobResult
from service.engine.inbox import LocalInbox, local_job
from service.measure.cases import Bench
from service.proof import requests as requests_module
from service.proof.running_service import NEW_TOKENS
from service.records import EngineSettings
from service.step.buffers import allocate
from service.step.meters import new_meter
from tests.support.small_models import SMALL

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


def exposed(path: requests_module.RequestPath, name: str) -> float:
    """The value of a sample of /metrics; 0 where it is not there."""
    text, _ = path.metrics.render("text/plain", Counter(), 0)
    lines = [line for line in text.decode().splitlines() if line.startswith(name)]
    return float(lines[0].split()[-1]) if lines else 0.0


OK = f'launchbound_requests_total{{mode="{MODE}",outcome="ok"}}'


def test_a_measured_request_has_meters_samples_and_an_entry_in_the_metrics(
    bench: Bench, tmp_path: Path
) -> None:
    path = requests_module.RequestPath(bench, MODE, tmp_path)
    for _ in range(REQUESTS):
        with path.busy():
            timing = path.measured()
    assert timing.engine.decode.steps == NEW_TOKENS - 1
    assert timing.engine.decode.wall_seconds is not None
    assert timing.engine.decode.samples_of == "traffic"
    assert exposed(path, OK) == REQUESTS


def test_an_unmeasured_request_gives_the_same_answer_and_leaves_all_that_out(
    bench: Bench, tmp_path: Path
) -> None:
    path = requests_module.RequestPath(bench, MODE, tmp_path)
    timing = path.unmeasured()
    assert timing.engine.decode.steps == NEW_TOKENS - 1
    assert timing.engine.decode.wall_seconds is None
    assert timing.engine.decode.samples_of is None
    assert exposed(path, OK) == 0
    assert timing.outcome.outputs == path.measured().outcome.outputs


def test_the_minimal_loop_gives_the_text_of_a_measured_request(bench: Bench, tmp_path: Path) -> None:
    text = requests_module.MinimalLoop(bench, MODE).run()
    assert text == requests_module.RequestPath(bench, MODE, tmp_path).measured().outcome.outputs[0].text
    assert len(text) >= NEW_TOKENS / 2


def test_requests_in_a_minimal_loop_have_samples_of_both_phases_and_of_nothing_between(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels: list[int] = []
    run = requests_module.MinimalLoop.run

    def noted(loop: requests_module.MinimalLoop, new_tokens: int = NEW_TOKENS) -> str:
        text = run(loop, new_tokens)
        labels.append(requests._sampler.label.value)
        return text

    monkeypatch.setattr(requests_module.MinimalLoop, "run", noted)
    requests = requests_module.SampledRequests(settings, [0], [MODE])
    monkeypatch.setattr(requests_module, "perf_counter", count().__next__)
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
    generator = Generator(open_tokenizer("tiny", config.vocabulary), buffers, 512, LocalInbox([]))
    job = local_job("x", MODE, [[0] * 30, [0] * 30], 32, ignore_eos=True)
    generator.run(job, steps, JobResult(), new_meter(torch.device("cpu"), 2, "off"))
    assert seen == {"prefill": {(32, 64)}, "decode": {(1, 64)}}
