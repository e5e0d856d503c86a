"""A whole request in this process: measured, only answered, in a minimal loop; the work between its steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from models.config import CONFIGS
from models.transformer import Transformer
from service.engine.generation import JobResult
from service.measure.cases import Bench
from service.proof import requests as requests_module
from service.proof.rows import run_check
from service.proof.running_service import NEW_TOKENS
from service.records import EngineSettings, Phase
from service.step.buffers import allocate
from service.step.meters import Readings
from tests.proof.samples import asked
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


def test_own_work_is_the_mean_gap_between_two_looks_for_cancellations_less_the_wait_for_the_device() -> None:
    begins = [0, 110_000, 230_000, 340_000, 460_000]
    calls = [(begin, begin + 100_000) for begin in begins]
    assert requests_module.gaps_seconds(calls, JobResult()) == pytest.approx(15e-6)
    waiting = JobResult()
    waiting.decode.wait = [5_000] * 5
    assert requests_module.gaps_seconds(calls, waiting) == pytest.approx(10e-6)


# Work that is asked, on steps that note what they are called with

SETTINGS = EngineSettings(address="", modes=["eager", "compiled"], batch_sizes=[1, 2], cache_folder="")


class MadeUpBench:
    """Steps that note mode, phase, context, tokens per row and the positions that they may read."""

    seen: list[tuple[str, Phase, int, int, int]]

    def __init__(self, settings: EngineSettings) -> None:
        self.settings, self.device = settings, torch.device("cpu")
        config = replace(SMALL, context=settings.context or 512, vocabulary=CONFIGS["tiny"].vocabulary)
        self.model = Transformer(config, max(settings.batch_sizes))
        self.buffers = allocate(self.model, settings.batch_sizes, settings.prefill_chunk)

    def case(self, mode: str, bucket: int, phase: Phase) -> SimpleNamespace:
        def step(tokens: torch.Tensor, positions: torch.Tensor, last: torch.Tensor, cache: Any) -> Any:
            reads = cache[0][0].shape[1]
            MadeUpBench.seen.append((mode, phase, self.model.config.context, tokens.shape[1], reads))
            return torch.zeros(bucket, 4), torch.zeros(bucket, dtype=torch.int64)

        return SimpleNamespace(step=step)


class MadeUpMeter:
    """Steps take a microsecond per position that they may read, and token that they are given."""

    def run(self, step: Any, arguments: Any, readings: Readings) -> Any:
        tokens, _, _, cache = arguments
        readings.call.append(1000 * tokens.shape[1] * cache[0][0].shape[1])
        readings.begin.append(0)
        return step(*arguments)

    def fetch(self, tokens: torch.Tensor, readings: Readings) -> list[int]:
        values: list[int] = tokens.tolist()
        return values


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    MadeUpBench.seen = []
    monkeypatch.setattr(requests_module, "new_meter", lambda *_: MadeUpMeter())
    monkeypatch.setattr(requests_module, "Bench", MadeUpBench)
    monkeypatch.setattr(requests_module, "ASKED_ROUNDS", 2)


def variants(device: str = "cpu", **settings: Any) -> Any:
    return SimpleNamespace(
        device=torch.device(device),
        modes=SETTINGS.modes,
        settings=msgspec.structs.replace(SETTINGS, **settings),
        isolated=nullcontext,
    )


@pytest.mark.usefixtures("made_up")
def test_every_mode_decodes_in_both_contexts_and_prefills_half_a_chunk_and_a_whole_one() -> None:
    """The engine decides what a step reads: the check hands it prompts."""
    found = requests_module.measure_asked(variants(), lambda text: None)
    arms = [("decode", 512), ("decode", 128), ("prefill", 30), ("prefill", 64)]
    assert list(found) == [
        requests_module.Arm(mode, phase, size, 2) for mode in SETTINGS.modes for phase, size in arms
    ]  # type: ignore[arg-type]
    seconds = {arm[1:3]: values for arm, values in found.items()}
    assert seconds[("decode", 512)] == seconds[("decode", 128)] == pytest.approx([64e-6] * 2)
    assert seconds[("prefill", 30)] == pytest.approx([32 * 64e-6] * 2)
    assert seconds[("prefill", 64)] == pytest.approx([64 * 64e-6] * 2)
    decodes = {one[2:] for one in MadeUpBench.seen if one[1] == "decode"}
    assert decodes == {(512, 1, 64), (128, 1, 64)}
    prefills = {one[2:4] for one in MadeUpBench.seen if one[1] == "prefill"}
    assert prefills == {(512, 32), (512, 64), (128, 32)}


def test_a_small_batch_has_no_row_of_prefill_and_says_why() -> None:
    rows = requests_module.judge_asked(asked(batch=4))
    verdicts: Mapping[str, str] = {row.name.partition(",")[0]: row.verdict for row in rows}
    assert verdicts == {
        requests_module.CONTEXTS.name: "pass",
        requests_module.PROMPTS.name: "not measurable here",
    }
    assert {row.note for row in rows if row.verdict == "not measurable here"} == {
        "a prefill at batch 4 is more than its tokens: serve one of 16 or more"
    }


@pytest.mark.usefixtures("made_up")
@pytest.mark.parametrize(
    ("given", "why"),
    [
        (variants("cuda"), "on CUDA"),
        (variants(prefill_chunk=128), "a context of eight chunks"),
        (variants(prefill_chunk=8), "a prefill chunk of 16 tokens"),
    ],
)
def test_where_it_cannot_be_measured_both_rows_say_so(given: Any, why: str) -> None:
    rows = run_check("asked-work", requests_module.ASKED_WORK, given, lambda text: None)
    assert [row.name for row in rows] == [requests_module.CONTEXTS.name, requests_module.PROMPTS.name]
    assert all(row.verdict == "not measurable here" and why in row.note for row in rows)
