"""The lessons: an interval decides each claim, and the page is that of the committed findings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.checkpoint import save
from models.transformer import Transformer
from service.anatomy.errors import StudyError
from service.anatomy.lessons import run
from service.anatomy.lessons.answer import Measured, Quoted, about
from service.anatomy.lessons.claims import CLAIMS, answers
from service.anatomy.lessons.decided import autocast_is, autograd_keys_are, sync_costs
from service.anatomy.lessons.findings import Findings, ModePoint, read, write
from service.anatomy.lessons.key_orders import key_orders
from service.anatomy.lessons.measure import COMPARED, MODES, measure
from service.anatomy.lessons.page import PAGE, newest, page_of
from service.anatomy.lessons.readings import eager_over_kernels, probe_difference
from service.anatomy.median_seconds import MedianSeconds
from service.anatomy.prepared_bench import machine_label
from service.measure.cases import Bench
from service.protocol.messages import EngineSettings
from service.statistics.intervals import Interval
from tests.support.anatomy_bench import CONFIG, quiet

EVIDENCE: Any = None
"""In the place of findings, where the reading does not look at them."""

LAYERS = {"python", "binding", "autograd", "dispatcher", "operator", "allocator", "kernel"}
ends = st.floats(-1e6, 1e6)


def quoted(low: float, high: float, *values: Measured) -> Quoted:
    return Quoted(low, high, " µs", lambda _: values)


@given(ends, ends, ends, ends)
def test_a_value_agrees_only_where_its_whole_interval_lies_in_the_quoted_range(
    a: float, b: float, c: float, d: float
) -> None:
    (low, high), (quoted_low, quoted_high) = sorted((a, b)), sorted((c, d))
    answer = quoted(quoted_low, quoted_high, Measured("x", low, low, high)).answer(EVIDENCE)
    ends_inside = [quoted_low <= end <= quoted_high for end in (low, high)]
    across = low < quoted_low and high > quoted_high
    expected = "agrees" if all(ends_inside) else "undecided" if any(ends_inside) or across else "disagrees"
    assert answer.verdict == expected


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([(2, 2), (3, 3)], "agrees"),
        ([(2, 2), (30, 31)], "agrees in part"),
        ([(2, 2), (30, 31), (0, 3)], "agrees in part"),
        ([(20, 21), (30, 31)], "disagrees"),
        ([(2, 2), (0, 3)], "undecided"),
        ([(20, 21), (0, 9)], "undecided"),
    ],
)
def test_several_values_agree_in_part_where_some_lie_outside(
    values: list[tuple[float, float]], verdict: str
) -> None:
    found = quoted(1, 5, *(Measured("x", low, low, high) for low, high in values)).answer(EVIDENCE)
    assert found.verdict == verdict
    assert len(found.values) == len(values)


def test_without_a_value_the_reason_is_given_and_nothing_is_judged() -> None:
    row = Quoted(1, 5, " µs", lambda _: (), lambda _: "a CPU launches nothing")
    found = row.answer(EVIDENCE)
    assert (found.values, found.verdict) == ((), "cannot be measured here")
    assert found.why_not == "a CPU launches nothing"


def test_a_value_is_shown_with_its_interval_and_what_was_counted_without() -> None:
    timed, counted = Measured("add", 0.612, 0.6, 0.62), Measured.counted("", 2345)
    unbounded = Measured("", 2.0, 1.5, math.inf)
    shown = [quoted(0, 1, one).answer(EVIDENCE).values[0] for one in (timed, counted, unbounded)]
    assert shown == ["add 0.612 (0.6 to 0.62) µs", "2,345 µs", "2 (1.5 to more) µs"]


def step_over_kernels(ratio: float, within: float) -> Any:
    """Findings of one point of eager: a step of `ratio` seconds, kernels of one, both `within` so much."""
    step = Interval(ratio, ratio * (1 - within), ratio * (1 + within), 25)
    kernel = Interval(1.0, 1 - within, 1 + within, 25)
    even = Interval(1.0, 1.0, 1.0, 25)
    point = ModePoint(mode="eager", step=step, kernel_seconds=kernel, source="sampled", speedup=even)
    return SimpleNamespace(speedups={"eager": [point]})


@pytest.mark.parametrize(
    ("ratio", "within", "verdict"),
    [(2.0, 0.01, "disagrees"), (5.0, 0.01, "agrees"), (5.0, 0.3, "undecided"), (20.0, 0.01, "disagrees")],
)
def test_a_step_over_its_kernels_is_judged_with_the_intervals_of_both(
    ratio: float, within: float, verdict: str
) -> None:
    found = Quoted(*about(5), " ×", eager_over_kernels).answer(step_over_kernels(ratio, within))
    assert found.verdict == verdict


def test_kernels_that_may_be_nothing_leave_the_step_over_them_without_an_upper_end() -> None:
    (found,) = eager_over_kernels(step_over_kernels(5.0, 1.0))
    assert math.isinf(found.high)


@given(st.floats(1e-3, 1e6))
def test_about_a_value_lies_around_it(value: float) -> None:
    low, high = about(value)
    assert low < value < high


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page_of(newest()), "run: launchbound lessons"


def test_the_committed_findings_answer_every_claim() -> None:
    for claim, answer in answers(read(newest())):
        assert (answer.why_not is None) == bool(answer.values), claim.about


def test_findings_of_another_format_are_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "findings.json").write_text('{"format_version": 1}')
    with pytest.raises(ValueError, match="launchbound lessons"):
        read(tmp_path)


def test_without_findings_the_command_that_makes_them_is_named(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="launchbound lessons"):
        newest(tmp_path)


def test_the_newest_folder_is_that_of_the_last_day(tmp_path: Path) -> None:
    for name in ("20260102-a-lessons", "20260201-a-lessons", "20260301-a-selftest"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "findings.json").touch()
    assert newest(tmp_path).name == "20260201-a-lessons"


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("AMD EPYC 9R45", "epyc"),
        ("AMD EPYC (family 25, model 17)", "epyc"),
        ("Intel(R) Xeon(R) Platinum 8488C", "xeon"),
        ("NVIDIA H200", "h200"),
        ("unknown CPU (x86_64) (family 6, model 1)", "machine"),
    ],
)
def test_a_machine_has_a_short_name(monkeypatch: pytest.MonkeyPatch, name: str, label: str) -> None:
    monkeypatch.setattr("service.anatomy.prepared_bench.device_name", lambda device: name)
    assert machine_label("cpu").rstrip("0123456789") == label.rstrip("0123456789")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, common_cache: Path) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("model")
    save(Transformer(CONFIG, max_batch=2, seed=5), folder)
    threads = torch.get_num_threads()
    settings = EngineSettings(
        address="",
        model=str(folder),
        device="cpu",
        modes=list(MODES),
        batch_sizes=[1, 2],
        prefill_chunk=16,
        threads=1,
        linears="aten",
        cache_folder=str(common_cache),
    )
    yield Bench(settings)
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def findings(bench: Bench) -> Findings:
    return measure(bench, 6, quiet)


@pytest.mark.compiles
@pytest.mark.slow
def test_everything_is_measured_once_with_its_interval(findings: Findings) -> None:
    assert set(findings.steps) == set(MODES)
    assert {mode: [point.mode for point in points] for mode, points in findings.speedups.items()} == {
        mode: list(modes) for mode, modes in COMPARED.items()
    }
    assert [one.batch_size for one in findings.saved] == [1, 2]
    assert {row.name for one in findings.layers.operations for row in one.layers} >= LAYERS
    assert findings.strides.ratio.low <= findings.strides.ratio.value <= findings.strides.ratio.high
    assert findings.strides.stride_bytes == 64


@pytest.mark.compiles
@pytest.mark.slow
def test_a_layer_norm_in_operators_is_nine_of_them_and_compiled_one_kernel(findings: Findings) -> None:
    assert (findings.layer_norm.by_operator, findings.layer_norm.compiled) == (9, 1)


@pytest.mark.compiles
@pytest.mark.slow
def test_findings_are_read_as_they_were_written_and_make_a_page(findings: Findings, tmp_path: Path) -> None:
    folder = tmp_path / "20261122-here-lessons"
    write(findings, folder)
    assert read(folder) == findings
    page = page_of(folder)
    assert all(f"| {claim.about} | {claim.quoted} |" in page for claim in CLAIMS)
    assert page.count("waits for one") == 4
    assert str(folder.parent) not in page
    assert f"`findings.json` in the folder `{folder.name}`" in page  # no link to what is not kept
    kept = tmp_path / "benchmarks" / folder.name
    write(findings, kept)
    assert f"](../benchmarks/{folder.name}/findings.json)" in page_of(kept)
    assert findings.machine.model in page


def test_one_real_call_decides_the_order_of_keys(bench: Bench) -> None:
    orders = {one.state: one.keys for one in key_orders(bench)}
    assert orders["inference_mode"] == ["CPU"]
    assert orders["eager"] == orders["no_grad"] == ["AutogradCPU", "CPU"]
    assert orders["eager, autocast"] == ["AutocastCPU", "AutogradCPU", "CPU"]


def test_texts_that_disagree_get_opposite_verdicts() -> None:
    found = read(newest())
    assert {autocast_is(above)(found).verdict for above in (True, False)} == {"agrees", "disagrees"}
    assert {autograd_keys_are(kept, "no_grad")(found).verdict for kept in (True, False)} == {
        "agrees",
        "disagrees",
    }


def test_a_probes_difference_combines_the_worse_ends_of_both_sides() -> None:
    without = MedianSeconds(median_seconds=1e-6, low=0.5e-6, high=2e-6, samples=9)
    fault = MedianSeconds(median_seconds=101e-6, low=100e-6, high=104e-6, samples=9)
    unbounded = msgspec.structs.replace(fault, low=None)
    probes = {
        "x": SimpleNamespace(without=without, with_fault=fault),
        "z": SimpleNamespace(without=without, with_fault=unbounded),
    }
    found: Any = SimpleNamespace(probes=probes)
    assert [(one.value, one.low, one.high) for one in probe_difference("x")(found)] == [
        pytest.approx((100, 98, 103.5))
    ]
    assert list(probe_difference("y")(found)) == list(probe_difference("z")(found)) == []


@pytest.mark.parametrize(
    ("probe", "verdict"), [("slower", "agrees"), ("no detectable difference", "disagrees")]
)
def test_a_sync_costs_where_its_probe_says_so(probe: str, verdict: str) -> None:
    side = MedianSeconds(median_seconds=1e-6, low=1e-6, high=2e-6, samples=9)
    sync = SimpleNamespace(without=side, with_fault=side, verdict=probe)
    found: Any = SimpleNamespace(probes={"sync-point": sync}, machine=SimpleNamespace(device="cuda"))
    assert sync_costs(found).verdict == verdict
    found.probes.clear()
    assert sync_costs(found).verdict == "cannot be measured here"


def test_settings_without_a_mode_that_is_compared_are_refused(tmp_path: Path) -> None:
    settings = EngineSettings(address="", modes=["eager"], batch_sizes=[1], cache_folder=str(tmp_path))
    with pytest.raises(StudyError, match="add no_grad, inference_mode, compiled"):
        run.main(settings, tmp_path / "x-lessons", 6)
    everything = msgspec.structs.replace(settings, modes=list(MODES))
    with pytest.raises(StudyError, match="end in -lessons"):
        run.main(everything, tmp_path / "x", 6)
