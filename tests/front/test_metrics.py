"""The exposition: what is there from the start and what moves, of modes and of requests, in both formats."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client import Histogram as LibraryHistogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample

from service.front.metrics import series as series_module
from service.front.metrics.catalogue import (
    CATALOGUE,
    OUTCOMES,
    PREFIX,
    REQUEST_BUCKETS,
    STEP_BUCKETS,
    TOKEN_BUCKETS,
    request_buckets,
)
from service.front.metrics.recorder import Metrics
from service.front.metrics.series import Histogram
from service.front.request_timing import add_up
from service.modes import default_modes
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
from tests.support.outcomes import ENGINE, JOB, outcome, phase, split
from tests.support.serving import Front, running, until

GUIDE = Path(__file__).parents[2] / "docs" / "observability.md"
SERIES = 1500
"""Of five modes and three batch buckets on a CPU, with some room for those of the front itself."""

ON_CUDA_ONLY = (
    "request_device_span_seconds", "request_sync_wait_seconds", "step_device_span_seconds",
    "step_dispatch_seconds", "step_period_seconds",
    "memory_allocated_bytes", "memory_reserved_bytes", "memory_active_bytes", "memory_inactive_split_bytes",
    "memory_alloc_retries_total", "memory_ooms_total", "cudagraph_captures_total", "cudagraph_replays_total",
)  # fmt: skip
NOT_WITHOUT_A_PROFILER = ("request_kernel_seconds", "step_batch_kernel_seconds", "device_bound_index")
ON_A_CPU_ONLY = ("samples_total",)

BY_SAMPLES = (
    "request_dispatch_seconds", "step_batch_dispatch_seconds",
    "request_kernel_seconds", "step_batch_kernel_seconds", "device_bound_index", "samples_total",
)  # fmt: skip
"""What a CPU can measure only by samples."""


def samples(front: Front) -> list[Sample]:
    page = front.http.get("/metrics").text
    return [sample for family in parse_text(page) for sample in family.samples]


def family_of(sample_name: str) -> str:
    stem = sample_name.removeprefix(PREFIX)
    names = {row.name for row in CATALOGUE}
    candidates = (stem, *(stem.removesuffix(end) for end in ("_bucket", "_count", "_sum")))
    return next((name for name in candidates if name in names), stem)


def names_of(page: Iterable[Sample]) -> set[str]:
    return {family_of(sample.name) for sample in page}


def test_on_a_cpu_all_is_at_zero_from_the_start_and_within_the_budget_once_all_was_served() -> None:
    batch_sizes = [1, 4, 16]
    with running({"batch_sizes": batch_sizes}) as front:
        front.await_ready()
        series = front.series()
        for mode in default_modes():
            for outcome in OUTCOMES:
                assert series[f'requests_total{{mode="{mode}",outcome="{outcome}"}}'] == 0
            assert series[f'request_duration_seconds_count{{mode="{mode}"}}'] == 0
            for phase in ("prefill", "decode"):
                assert (
                    series[f'step_batch_wall_seconds_count{{batch="4",mode="{mode}",phase="{phase}"}}'] == 0
                )
        assert series['requests_rejected_total{reason="draining"}'] == 0
        assert series['samples_total{batch="16",mode="eager",phase="decode",side="system"}'] == 3
        assert series["process_resident_memory_bytes"] > 0
        assert not [name for name in series if 'mode="fallback"' in name or "_created" in name]
        compile_ = {mode for mode in default_modes() if f'compile_seconds_count{{mode="{mode}"}}' in series}
        assert compile_ == {"compiled", "reduce-overhead"}
        for mode in default_modes():
            for batch in batch_sizes:
                front.generate(mode, prompts=["a"] * batch)
                front.command("!profiled", mode=mode)
        assert len(samples(front)) <= SERIES


def test_a_page_is_rendered_once_a_second_unless_a_fresh_one_is_asked_for(
    own_front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = series_module.monotonic() + 10.0
    now = [begun]
    monkeypatch.setattr(series_module, "monotonic", lambda: now[0])

    def counted(cache_control: str = "") -> float:
        page = own_front.http.get("/metrics", headers={"Cache-Control": cache_control}).text
        samples = (sample for family in parse_text(page) for sample in family.samples)
        return sum(sample.value for sample in samples if sample.name == f"{PREFIX}batch_size_sum")

    first = counted()
    own_front.generate()
    now[0] = begun + 0.99
    assert counted() == first
    assert counted("no-cache") == first + 1
    own_front.generate()
    now[0] = begun + 1.98
    assert counted() == first + 1
    now[0] = begun + 1.99
    assert counted() == first + 2


def test_a_page_of_one_format_is_no_answer_in_the_other(own_front: Front) -> None:
    own_front.generate()
    kept = {"Cache-Control": ""}
    for accept, parse in (("", parse_text), ("application/openmetrics-text", parse_openmetrics)) * 2:
        answer = own_front.http.get("/metrics", headers={**kept, "Accept": accept}, follow_redirects=False)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(accept or "text/plain; version=0.0.4")
        assert f"{PREFIX}request_duration_seconds" in {family.name for family in parse(answer.text)}


@pytest.mark.slow
def test_what_a_device_cannot_measure_is_absent(front: Front, cuda_front: Front) -> None:
    front.generate()
    cpu = names_of(samples(front))
    assert cpu.isdisjoint(ON_CUDA_ONLY)
    assert cpu.issuperset(BY_SAMPLES)
    # There a graph can be skipped, so that the fallback is there from the start.
    assert cuda_front.series()['requests_total{mode="fallback",outcome="ok"}'] == 0
    cuda_front.generate()
    cuda = names_of(samples(cuda_front))
    assert cuda.issuperset(ON_CUDA_ONLY)
    assert cuda.isdisjoint((*NOT_WITHOUT_A_PROFILER, *ON_A_CPU_ONLY))
    with running(no_samples="of a reason") as unsampled:
        unsampled.await_ready()
        assert unsampled.generate().status_code == 200
        assert names_of(samples(unsampled)).isdisjoint(BY_SAMPLES)
    with running(silent=True) as unknown:
        names = names_of(samples(unknown))
        assert names.isdisjoint((*ON_CUDA_ONLY, *BY_SAMPLES, "build_info"))
        assert "request_duration_seconds" in names
        assert unknown.series()["engine_up"] == 0


def test_the_boundaries_are_those_of_the_contract_one_set_for_all_parts_of_requests(front: Front) -> None:
    bounds: dict[str, set[str]] = {}
    for sample in samples(front):
        if sample.name.startswith(f"{PREFIX}request_") and sample.name.endswith("_bucket"):
            bounds.setdefault(sample.name, set()).add(sample.labels["le"])
    assert len(bounds) == 5
    assert len(set(map(frozenset, bounds.values()))) == 1
    assert {"0.001", "0.01", "0.05", "0.1", "0.5", "1.0"} <= next(iter(bounds.values()))
    assert STEP_BUCKETS[0] == 25e-6
    assert STEP_BUCKETS[-1] == pytest.approx(1.6, rel=0.05)
    ratios = [high / low for low, high in pairwise(STEP_BUCKETS)]
    assert ratios == pytest.approx([2**0.5] * len(ratios), rel=0.01)
    assert REQUEST_BUCKETS[0] == 0.0005
    assert set(TOKEN_BUCKETS) < set(STEP_BUCKETS)


@pytest.mark.parametrize("timeout", [0.4, 120.0, 200.0, 600.0, 86400.0])
def test_the_last_boundary_of_requests_is_above_their_timeout(timeout: float) -> None:
    bounds = request_buckets(timeout)
    assert bounds[-1] > timeout
    assert bounds[: len(REQUEST_BUCKETS)] == REQUEST_BUCKETS
    assert list(bounds) == sorted(set(bounds))


def test_a_request_moves_the_metrics_by_the_numbers_of_its_answer(own_front: Front) -> None:
    answer = own_front.generate("compiled", prompts=["a b c", "d"], max_new_tokens=5).json()
    series = own_front.moved()
    timings = answer["timings"]
    for part in ("queue", "dispatch", "kernel", "other"):
        assert series[f'request_{part}_seconds_sum{{mode="compiled"}}'] == pytest.approx(
            timings[f"{part}_seconds"]
        )
    assert series['request_duration_seconds_sum{mode="compiled"}'] == pytest.approx(timings["total_seconds"])
    ttft = timings["time_to_first_token_seconds"]
    assert series['time_to_first_token_seconds_sum{mode="compiled"}'] == pytest.approx(ttft)
    per_token = (timings["total_seconds"] - ttft) / 4
    assert series['time_per_output_token_seconds_sum{mode="compiled"}'] == pytest.approx(per_token)
    assert series['tokens_total{kind="prompt",mode="compiled"}'] == 4
    assert series['tokens_total{kind="generated",mode="compiled"}'] == 10
    assert series['batch_size_sum{mode="compiled"}'] == 2
    assert 0 < series["instrumentation_seconds_total"] < 1


@pytest.mark.parametrize("fields", [{"prompts": ["!profiled"]}, {"sample": True}])
def test_a_profiled_or_sampled_request_enters_no_time_histogram(
    own_front: Front, fields: dict[str, object]
) -> None:
    assert own_front.generate(**fields).status_code == 200
    series = own_front.moved()
    assert series['profiled_requests_total{mode="eager"}'] == 1
    assert series['requests_total{mode="eager",outcome="ok"}'] == 1
    assert series['request_duration_seconds_count{mode="eager"}'] == 0
    assert series['step_batch_wall_seconds_count{batch="1",mode="eager",phase="decode"}'] == 0


def exemplars(front: Front) -> set[tuple[str, str, str]]:
    """(sample, mode, trace) of the buckets that point to a trace, in OpenMetrics."""
    page = front.http.get("/metrics", headers={"Accept": "application/openmetrics-text"}).text
    return {
        (sample.name.removeprefix(PREFIX), sample.labels["mode"], sample.exemplar.labels["trace_id"])
        for family in parse_openmetrics(page)
        for sample in family.samples
        if sample.exemplar
    }


def test_a_profiled_request_is_an_exemplar_of_the_histograms_that_do_not_count_it(own_front: Front) -> None:
    before, traces = exemplars(own_front), set()
    own_front.generate()
    assert exemplars(own_front) == before
    parts = [f"request_{part}_seconds" for part in ("duration", "queue", "dispatch", "kernel", "other")]
    histograms = (*parts, "time_to_first_token_seconds", "time_per_output_token_seconds")
    for _ in range(2):  # of one id, but with exemplars of their own
        own_front.generate(prompts=["!profiled"], headers={"X-Request-ID": "i" * 128})
        found = exemplars(own_front) - before
        before |= found
        assert {(name, mode) for name, mode, _ in found} == {
            (f"{name}_bucket", "eager") for name in histograms
        }
        ((_, _, trace), *others) = found
        assert {other for *_, other in others} == {trace}
        assert trace not in own_front.http.get("/metrics").text
        traces.add(trace)
    assert len(traces) == 2
    assert "i" * 128 not in traces


@pytest.mark.parametrize(
    ("reason", "counted"), [("graph_skipped", "graph_skipped"), ("a long text", "other")]
)
def test_a_request_that_ran_as_something_else_is_observed_as_fallback(
    own_front: Front, reason: str, counted: str
) -> None:
    own_front.command(f"!fallback {reason}", mode="compiled")
    own_front.generate("reduce-overhead")
    series = own_front.moved()
    assert series['requests_total{mode="reduce-overhead",outcome="ok"}'] == 1  # as it was declared
    assert series['requests_total{mode="fallback",outcome="ok"}'] == 1
    assert series['requests_total{mode="compiled",outcome="ok"}'] == 0
    assert series['request_duration_seconds_count{mode="compiled"}'] == 0
    assert series[f'fallbacks_total{{mode="compiled",reason="{counted}"}}'] == 1


def test_refusals_are_counted_by_reason_and_under_their_mode_where_it_is_valid() -> None:
    with running({"api_key": "key", "max_body_bytes": 1024}, states={"compiled": "warming"}) as front:
        until(lambda: front.state.client.engine is not None, "the engine's status")
        front.generate()  # no key
        front.http.headers["Authorization"] = "Bearer key"
        front.generate("nothing")
        front.generate("eager", max_new_tokens=0)
        front.generate("eager", prompts=["x" * 2000])
        front.generate("compiled")
        front.command("!problem prompt_too_long")
        client = front.state.client
        client.max_queue = 0
        front.generate()
        client.draining = True
        front.generate()
        client.draining = False
        counts = {"unauthorised": 1, "bad_request": 3, "too_large": 1, "not_ready": 1}
        series = front.series()
        for reason, count in (counts | {"queue_full": 1, "draining": 1}).items():
            assert series[f'requests_rejected_total{{reason="{reason}"}}'] == count, reason
        assert series['requests_total{mode="eager",outcome="rejected"}'] == 5
        assert series['requests_total{mode="compiled",outcome="rejected"}'] == 1
        assert series['requests_total{mode="eager",outcome="error"}'] == 0


def test_on_cuda_each_step_is_observed_and_is_a_replay_where_the_mode_replays_graphs(
    cuda_front: Front,
) -> None:
    cuda_front.renew()
    decode = cuda_front.generate("reduce-overhead", max_new_tokens=5).json()["timings"]["decode"]
    cuda_front.generate("compiled", max_new_tokens=5)
    cuda_front.command("!fallback graph_skipped", mode="reduce-overhead")
    moved = cuda_front.moved()
    for name in ("dispatch", "device_span"):
        labels = '{mode="reduce-overhead",phase="decode"}'
        assert moved[f"step_{name}_seconds_count{labels}"] == decode["steps"]
        assert moved[f"step_{name}_seconds_sum{labels}"] == pytest.approx(decode[f"{name}_seconds"])
    assert moved['cudagraph_replays_total{mode="reduce-overhead"}'] == 5
    assert moved['cudagraph_replays_total{mode="compiled"}'] == 0


def test_what_an_engine_counts_adds_up_over_engine_restarts(cuda_front: Front) -> None:
    cuda_front.renew()
    counted = (
        'cudagraph_captures_total{mode="reduce-overhead"}',
        'compile_seconds_count{mode="compiled"}',
        'recompiles_total{mode="compiled"}',
        "memory_ooms_total",
        "memory_alloc_retries_total",
    )

    def moved() -> list[float]:
        return [cuda_front.moved()[name] for name in counted]

    for command in ("!oom", "!oom", "!compile compiled"):
        cuda_front.command(command)
    assert moved() == [0, 1, 1, 2, 2]
    cuda_front.command("!die")
    cuda_front.await_ready()
    assert moved() == [2, 3, 1, 2, 2]
    cuda_front.command("!oom")
    assert moved() == [2, 3, 1, 3, 3]


def test_a_request_whose_steps_have_no_samples_yet_adds_them_to_no_part(own_front: Front) -> None:
    own_front.command("!unsplit", mode="compiled")
    parts, moved = ("duration", "queue", "dispatch", "kernel", "other"), own_front.moved()
    found = [moved[f'request_{part}_seconds_count{{mode="compiled"}}'] for part in parts]
    assert found == [1, 1, 0, 0, 0]


def test_the_states_of_modes_and_engine_follow_them(own_front: Front) -> None:
    assert own_front.series()['mode_ready{mode="compiled"}'] == 1
    own_front.command("!state compiled failed")
    series = own_front.series()
    assert (series['mode_ready{mode="compiled"}'], series['mode_failed{mode="compiled"}']) == (0, 1)
    own_front.command("!die")
    series = own_front.series()
    assert (series["engine_up"], series['mode_ready{mode="eager"}']) == (0, 0)
    assert series['mode_failed{mode="compiled"}'] == 0


def test_infos_describe_build_model_and_modes(front: Front) -> None:
    infos = {sample.name: sample.labels for sample in samples(front) if sample.name.endswith("_info")}
    assert infos[f"{PREFIX}build_info"].keys() == {"version", "commit", "torch", "cuda", "device"}
    assert infos[f"{PREFIX}model_info"].keys() == {"name", "parameters", "dtype", "layers", "width"}
    declared = {s.labels["mode"]: s.labels["effective"] for s in samples(front) if "effective_info" in s.name}
    assert declared["reduce-overhead"] == "compiled-cpp"


LABELS = {"mode": "eager", "phase": "decode", "batch": "4"}


def status(**changes: object) -> ModeStatus:
    return ModeStatus(mode="eager", removes="", state="ready", effective="eager", **changes)  # type: ignore[arg-type]


def recorder(device: str = "cpu") -> tuple[Metrics, CollectorRegistry]:
    """With an engine on `device` that has reported its status."""
    made = CollectorRegistry()
    metrics = Metrics(made, ["eager"], [1, 4], {"version": "0", "commit": "0"})
    metrics.engine(msgspec.structs.replace(ENGINE, device=device))
    return metrics, made


def sampled(samples: int, phase: Phase = "decode", share: float = 0.6) -> StepSplit:
    """Of batch 4; so many samples in kernels as in the host since the engine's start, and one of no rule."""
    return split(share, SampleCounts(kernel=samples, host=samples, unclassified=1), 4, phase)


def counted(made: CollectorRegistry, phase: str = "decode", batch: str = "4") -> list[float | None]:
    labels = {"mode": "eager", "phase": phase, "batch": batch}
    return [made.get_sample_value("launchbound_samples_total", {**labels, "side": side}) for side in SIDES]


def test_samples_grow_by_what_an_engine_has_more_than_it_last_said() -> None:
    metrics, made = recorder()
    for samples in (5, 5, 8):
        metrics.mode(status(splits=[sampled(samples)]))
        assert counted(made) == [samples, samples, 0, 1]
    metrics.mode(status())
    metrics.mode(status(splits=[sampled(9), sampled(2, "prefill")]))
    assert counted(made) == [9, 9, 0, 1]
    assert counted(made, "prefill") == [2, 2, 0, 1]


def test_the_device_bound_index_is_by_the_newest_samples_of_decode_and_on_cuda_by_the_newest_request() -> (
    None
):
    (on_cpu, cpu), (on_cuda, cuda) = recorder(), recorder("cuda")
    name, labels = "launchbound_device_bound_index", {"mode": "eager", "batch": "4"}
    for kernel in (9.0, 1.0):
        for metrics in (on_cpu, on_cuda):
            metrics.observe(add_up(JOB, outcome(phase(0.0, 0.0), phase(3.0, kernel)), 0, 5_000, 10_000))
    assert (cpu.get_sample_value(name, labels), cuda.get_sample_value(name, labels)) == (None, 0.25)
    for share in (0.6, 0.3):
        on_cpu.mode(status(splits=[sampled(5, share=share), sampled(5, "prefill", share=0.9)]))
        assert cpu.get_sample_value(name, labels) == pytest.approx(1 - share)


def test_what_a_gpus_steps_cost_is_gauges_of_one_size_where_it_was_measured() -> None:
    step: dict[str, Any] = {"phase": "decode", "batch": 4, "row_tokens": 1, "attended_tokens": 64}
    kernel = KernelTime(**step, seconds=1e-4, low=None, high=None, samples=3)
    longer = msgspec.structs.replace(kernel, seconds=9e-4, attended_tokens=512)
    cost = ProfilerCost(ratio=1.1, low=1.0, high=1.2, rounds=8, before_seconds=1e-4, after_seconds=1.1e-4)
    device = DeviceTime(**step, seconds=2e-4, low=2e-4, high=2e-4, samples=11, queued=16, upper_bound=False)
    (metrics, measured), (unmeasured, bound) = recorder(), recorder()
    metrics.mode(status(device_times=[device], kernel_times=[kernel, longer], profiler_cost=cost))
    unmeasured.mode(status(device_times=[msgspec.structs.replace(device, upper_bound=True)]))
    for name, labels, value in (
        ("step_device_seconds", LABELS, 2e-4),
        ("step_kernel_seconds", LABELS, 1e-4),
        ("profiler_dispatch_ratio", {"mode": "eager"}, 1.1),
    ):
        assert measured.get_sample_value(f"launchbound_{name}", labels) == value
        assert bound.get_sample_value(f"launchbound_{name}", labels) is None  # no measurement


BOUNDS = (25e-6, 0.5, 1.0, 12.0)
LABEL_VALUES = ("eager", 'with "quotes"', "back\\slash\nand line")


@pytest.mark.parametrize("open_metrics", [False, True])
@given(
    observed=st.lists(
        st.tuples(st.sampled_from(LABEL_VALUES), st.floats(0, 20) | st.sampled_from(BOUNDS)), max_size=30
    )
)
def test_its_exposition_is_the_librarys_byte_for_byte(
    open_metrics: bool, observed: list[tuple[str, float]]
) -> None:
    disable_created_metrics()
    registry = CollectorRegistry()
    ours = Histogram("x_seconds", "Help.", ["mode"], "seconds", BOUNDS)
    theirs = LibraryHistogram(
        "x_seconds", "Help.", ["mode"], unit="seconds", registry=registry, buckets=BOUNDS
    )
    for mode, value in observed:
        theirs.labels(mode).observe(value)
        ours.labels(mode)(value)
    encode, _ = choose_encoder("application/openmetrics-text; version=1.0.0" if open_metrics else "")
    assert ours.exposition(open_metrics) == encode(registry).decode().removesuffix("# EOF\n")


def test_the_guide_has_every_metric_with_its_meaning() -> None:
    guide = GUIDE.read_text()
    for row in CATALOGUE:
        labels = ", ".join(row.labels) or "–"
        line = f"| `{row.name}` | {row.kind} | {labels} | {row.unit or '–'} | {row.help} |"
        assert line in guide, line


def test_every_label_is_explained_on_the_page() -> None:
    explained = {line.split(" | ")[0].removeprefix("| ") for line in GUIDE.read_text().splitlines()}
    assert explained.issuperset(name for row in CATALOGUE if row.kind != "info" for name in row.labels)
