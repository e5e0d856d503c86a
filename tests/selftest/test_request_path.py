"""The arms of the instrumentation row: one measures and records a whole request, the other does neither."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from service.engine.request_samples import RequestSamples
from service.measure.cases import Bench
from service.protocol.messages import EngineSettings
from service.selftest.check import NotMeasurableError
from service.selftest.checks import NEW_TOKENS
from service.selftest.minimal_loop import MinimalLoop
from service.selftest.request_path import RequestPath
from service.selftest.sampled_dispatch import MOST_SECONDS, seconds_for, stack_sampler
from service.selftest.served_samples import of_requests
from service.step.native.perf_events import SAMPLES_PER_SECOND

MODE = "inference_mode"


class CountedCalibration:
    """In place of a `Calibration`: counts how often a floor is asked for, and has none."""

    def __init__(self) -> None:
        self.asked = 0

    def floor(self, *place: object) -> None:
        self.asked += 1


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    threads = torch.get_num_threads()
    yield Bench(
        EngineSettings(
            address="",
            device="cpu",
            threads=1,
            linears="aten",
            cache_folder="",
            modes=[MODE],
            batch_sizes=[1],
        )
    )
    torch.set_num_threads(threads)


def exposed(path: RequestPath, name: str) -> float:
    """The value of a sample of /metrics; 0 where it is not there."""
    text, _ = path.metrics.render("text/plain", Counter(), 0)
    lines = [line for line in text.decode().splitlines() if line.startswith(name)]
    return float(lines[0].split()[-1]) if lines else 0.0


OK = f'launchbound_requests_total{{mode="{MODE}",outcome="ok"}}'


def test_a_measured_request_has_meters_its_floor_and_an_entry_in_the_metrics(
    bench: Bench, tmp_path: Path
) -> None:
    calibration = CountedCalibration()
    path = RequestPath(bench, MODE, calibration, tmp_path)  # type: ignore[arg-type]
    timing = path.measured()
    assert calibration.asked == 2  # one floor per phase
    assert timing.engine.decode.steps == NEW_TOKENS - 1
    assert timing.engine.decode.wall_seconds is not None
    assert exposed(path, OK) == 1


def test_an_unmeasured_request_gives_the_same_answer_and_leaves_all_that_out(
    bench: Bench, tmp_path: Path
) -> None:
    calibration = CountedCalibration()
    path = RequestPath(bench, MODE, calibration, tmp_path)  # type: ignore[arg-type]
    timing = path.unmeasured()
    assert calibration.asked == 0
    assert timing.engine.decode.steps == NEW_TOKENS - 1
    assert timing.engine.decode.wall_seconds is None
    assert exposed(path, OK) == 0
    assert timing.outcome.outputs == path.measured().outcome.outputs


def test_a_sampled_request_runs_the_same_steps_and_has_their_samples_where_that_is_allowed(
    bench: Bench, tmp_path: Path
) -> None:
    path = RequestPath(bench, MODE, CountedCalibration(), tmp_path)  # type: ignore[arg-type]
    with suppress(NotMeasurableError), stack_sampler() as sampler:
        result = path.sampled(RequestSamples(sampler))
        assert result.decode.steps == NEW_TOKENS - 1
        assert result.decode.samples is not None
        assert result.decode.samples.kernel + result.decode.samples.host > 0
        seen = of_requests(path, RequestSamples(sampler), "prefill", 0.05)
        assert 0.0 < seen.share < 1.0
        assert seen.of_time > 0.0


def test_a_small_share_of_dispatch_is_sampled_for_longer() -> None:
    for share in (0.15, 0.6):
        assert seconds_for(200, share) * SAMPLES_PER_SECOND * share == pytest.approx(200)
    assert seconds_for(200, 0.0) == MOST_SECONDS


def test_the_minimal_loop_gives_the_text_of_a_measured_request(bench: Bench, tmp_path: Path) -> None:
    path = RequestPath(bench, MODE, CountedCalibration(), tmp_path)  # type: ignore[arg-type]
    text = MinimalLoop(bench, MODE).run()
    assert text == path.measured().outcome.outputs[0].text
    assert len(text) >= NEW_TOKENS / 2
