"""What the engine reports of its modes as series, the text of histograms, and the page that lists all."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client import Histogram as LibraryHistogram
from prometheus_client.exposition import choose_encoder

from service.front.metrics import page
from service.front.metrics.catalogue import CATALOGUE
from service.front.metrics.recorder import Metrics
from service.front.metrics.series import Histogram
from service.front.request_timing import add_up
from service.records import (
    SIDES,
    DeviceTime,
    KernelTime,
    ModeStatus,
    Phase,
    ProfilerCost,
    SampleCounts,
    StepSplit,
)
from tests.front.test_auto_mode import ENGINE
from tests.support.outcomes import JOB, outcome, phase

LABELS = {"mode": "eager", "phase": "decode", "batch": "4"}


def status(**changes: object) -> ModeStatus:
    return ModeStatus(mode="eager", removes="", state="ready", effective="eager", **changes)  # type: ignore[arg-type]


def recorder(device: str = "cpu", mode: str = "eager") -> tuple[Metrics, CollectorRegistry]:
    """With an engine on `device` that has told of itself."""
    made = CollectorRegistry()
    metrics = Metrics(made, [mode], [1, 4], {"version": "0", "commit": "0"})
    metrics.engine(msgspec.structs.replace(ENGINE, device=device))
    return metrics, made


def registry(**changes: object) -> CollectorRegistry:
    """What is exported after a status of eager with `changes`."""
    metrics, made = recorder()
    metrics.mode(status(**changes))
    return made


def split(samples: int, phase: Phase = "decode", share: float = 0.6) -> StepSplit:
    """Of batch 4; so many samples in kernels as in the host since the engine's start, and one of no rule."""
    counts = SampleCounts(kernel=samples, host=samples, unclassified=1)
    return StepSplit(
        phase=phase,
        batch=4,
        dispatch_share=share,
        low=0.5,
        high=0.7,
        step_seconds=1e-3,
        newest=counts,
        all=counts,
    )


def counted(made: CollectorRegistry, phase: str = "decode", batch: str = "4") -> list[float | None]:
    place = {"mode": "eager", "phase": phase, "batch": batch}
    return [made.get_sample_value("launchbound_samples_total", {**place, "side": side}) for side in SIDES]


@pytest.mark.parametrize(("device", "there"), [("cpu", [0.0] * 4), ("cuda", [None] * 4)])
def test_samples_are_at_zero_for_every_step_from_the_start_and_absent_on_cuda(
    device: str, there: list[float | None]
) -> None:
    _, made = recorder(device)
    places = [(phase, batch) for phase in ("prefill", "decode") for batch in ("1", "4")]
    assert [counted(made, *place) for place in places] == [there] * 4


def test_samples_grow_by_what_an_engine_has_more_than_it_last_said() -> None:
    metrics, made = recorder()
    for samples in (5, 5, 8):
        metrics.mode(status(splits=[split(samples)]))
        assert counted(made) == [samples, samples, 0, 1]
    metrics.mode(status())
    metrics.mode(status(splits=[split(9), split(2, "prefill")]))
    assert counted(made) == [9, 9, 0, 1]
    assert counted(made, "prefill") == [2, 2, 0, 1]


def test_the_device_bound_index_is_the_kernel_share_of_decode_by_the_newest_samples() -> None:
    metrics, made = recorder()
    for share in (0.6, 0.3):
        metrics.mode(status(splits=[split(5, share=share), split(5, "prefill", share=0.9)]))
        index = made.get_sample_value("launchbound_device_bound_index", {"mode": "eager", "batch": "4"})
        assert index == pytest.approx(1 - share)


@pytest.mark.parametrize(("device", "index"), [("cpu", None), ("cuda", 0.25)])
def test_the_device_bound_index_is_that_of_the_newest_request_on_cuda_alone(
    device: str, index: float | None
) -> None:
    metrics, made = recorder(device)
    for kernel in (9.0, 1.0):
        done = outcome(phase(0.0, 0.0), phase(3.0, kernel))
        metrics.observe(add_up(JOB, done, 0, 5_000, 10_000))
    labels = {"mode": "eager", "batch": "4"}
    assert made.get_sample_value("launchbound_device_bound_index", labels) == index


def test_what_a_gpus_steps_cost_is_gauges_where_it_was_measured() -> None:
    kernel = KernelTime(phase="decode", batch=4, seconds=1e-4, low=None, high=None, samples=3)
    cost = ProfilerCost(ratio=1.1, low=1.0, high=1.2, rounds=8, before_seconds=1e-4, after_seconds=1.1e-4)
    device = DeviceTime(
        phase="decode", batch=4, seconds=2e-4, low=2e-4, high=2e-4, samples=11, queued=16, upper_bound=False
    )
    measured = registry(device_times=[device], kernel_times=[kernel], profiler_cost=cost)
    bound = registry(device_times=[msgspec.structs.replace(device, upper_bound=True)])
    for name, labels, value in (
        ("step_device_seconds", LABELS, 2e-4),
        ("step_kernel_seconds", LABELS, 1e-4),
        ("profiler_dispatch_ratio", {"mode": "eager"}, 1.1),
    ):
        assert measured.get_sample_value(f"launchbound_{name}", labels) == value
        assert bound.get_sample_value(f"launchbound_{name}", labels) is None  # no measurement


@pytest.mark.parametrize(("device", "replays"), [("cpu", None), ("cuda", 4.0)])
def test_replays_are_counted_by_what_a_mode_does_on_the_engines_device(
    device: str, replays: float | None
) -> None:
    """`max-autotune` has one name on both; only on CUDA does it replay graphs."""
    metrics, made = recorder(device, "max-autotune")
    done = outcome(phase(0.0, 0.0), phase(0.0, 0.0, steps=3), mode="max-autotune")
    job = msgspec.structs.replace(JOB, mode="max-autotune")
    metrics.observe(add_up(job, done, 0, 5_000, 10_000))
    sample = made.get_sample_value("launchbound_cudagraph_replays_total", {"mode": "max-autotune"})
    assert sample == replays


BOUNDS = (25e-6, 0.5, 1.0, 12.0)
LABEL_VALUES = ("eager", 'with "quotes"', "back\\slash\nand line")


def histogram() -> Histogram:
    return Histogram("x_seconds", "Help.", ["mode"], "seconds", BOUNDS)


@pytest.mark.parametrize("open_metrics", [False, True])
@given(
    observed=st.lists(
        st.tuples(st.sampled_from(LABEL_VALUES), st.floats(0, 20) | st.sampled_from(BOUNDS)), max_size=30
    ),
    scrapes=st.sets(st.integers(0, 29)),
)
def test_its_exposition_is_the_librarys_byte_for_byte(
    open_metrics: bool, observed: list[tuple[str, float]], scrapes: set[int]
) -> None:
    disable_created_metrics()
    registry, ours = CollectorRegistry(), histogram()
    theirs = LibraryHistogram(
        "x_seconds", "Help.", ["mode"], unit="seconds", registry=registry, buckets=BOUNDS
    )
    for number, (mode, value) in enumerate(observed):
        theirs.labels(mode).observe(value)
        ours.labels(mode)(value)
        if number in scrapes:
            ours.exposition(open_metrics)  # its cached text must not outlive the next value
    encode, _ = choose_encoder("application/openmetrics-text; version=1.0.0" if open_metrics else "")
    assert ours.exposition(open_metrics) == encode(registry).decode().removesuffix("# EOF\n")


def test_the_committed_page_is_current() -> None:
    assert page.main(["--check"]) == 0


def test_a_page_that_differs_is_refused_with_the_command_that_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    committed = page.PAGE.read_text()
    monkeypatch.setattr(page, "PAGE", tmp_path / "metrics.md")
    page.PAGE.write_text(committed.replace("| `engine_up` |", "| `engine_down` |"))
    assert page.main(["--check"]) == 1
    assert "python -m service.front.metrics.page --write" in capsys.readouterr().err
    assert page.main(["--write"]) == 0
    assert page.PAGE.read_text() == committed


def test_every_metric_has_one_line_of_six_cells_and_every_label_is_explained() -> None:
    lines = page.PAGE.read_text().splitlines()
    explained = {line.split(" | ")[0].removeprefix("| ") for line in lines}
    for row in CATALOGUE:
        (line,) = [line for line in lines if line.startswith(f"| `{row.name}` | {row.kind} |")]
        cells = line.strip("| ").split(" | ")
        assert len(cells) == 6
        assert cells[2] == (", ".join(row.labels) or "–")
        assert row.kind == "info" or explained.issuperset(row.labels)
