"""The selftest's rules, classes and files; nothing here is timed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from threading import Event

import msgspec
import pytest
import torch

from models.config import CONFIGS
from models.transformer import Transformer
from service.front.settings import Settings
from service.measure.native_stacks import Recording, Sample
from service.measure.rounds import in_rounds, paired_median_ratio
from service.measure.symbols import RULES, parse, side_of
from service.protocol.messages import EngineSettings
from service.protocol.modes import MODES
from service.selftest import bench
from service.selftest.checks import BENCH, SERVICE, chosen, settle
from service.selftest.counting import at_least, share_interval
from service.selftest.cross_check_perf import Window, kernel_shares
from service.selftest.cross_check_widths import family
from service.selftest.disturbance import Disturbance
from service.selftest.parts import request_parts
from service.selftest.regression import curvature, intercept
from service.selftest.report import FILE, measured, new_report, read, write
from service.selftest.rows import CheckResult, exact, judge, judged, not_measurable, worst
from service.selftest.served import flags
from service.statistics.intervals import Interval
from service.step.buffers import allocate
from service.step.callables import InjectedWork, build_step


def interval(low: float, high: float) -> Interval:
    return Interval((low + high) / 2, low, high, 8)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.80, 0.95, "pass"),
        (0.75, 1.25, "pass"),
        (0.70, 0.80, "undecided"),
        (1.20, 1.30, "undecided"),
        (0.50, 1.50, "undecided"),
        (0.50, 0.74, "fail"),
        (1.26, 9.00, "fail"),
    ],
)
def test_a_row_passes_inside_its_bound_fails_outside_and_is_undecided_across_it(
    low: float, high: float, verdict: str
) -> None:
    assert judge(interval(low, high), 0.75, 1.25) == verdict


def test_an_interval_without_end_is_never_decided() -> None:
    assert judge(Interval(1.0, -math.inf, math.inf, 1), 0.75, 1.25) == "undecided"


def test_one_failure_makes_several_verdicts_a_failure() -> None:
    assert worst(["pass", "undecided", "fail"]) == "fail"
    assert worst(["pass", "undecided"]) == "undecided"
    assert worst(["pass", "not measurable here"]) == "pass"


def test_a_count_passes_at_its_bound_and_fails_only_where_the_share_is_surely_lower() -> None:
    verdicts = {count: at_least("x", count, 40, 35).verdict for count in (40, 35, 34, 31, 30, 0)}
    assert verdicts == {40: "pass", 35: "pass", 34: "undecided", 31: "undecided", 30: "fail", 0: "fail"}


def test_the_interval_of_a_share_is_that_of_clopper_and_pearson() -> None:
    share = share_interval(8, 10)
    assert (share.low, share.high) == pytest.approx((0.4439, 0.9748), abs=1e-4)
    assert share_interval(0, 10).low == 0.0
    assert share_interval(10, 10).high == 1.0


def test_the_intercept_of_a_line_with_known_noise_is_found() -> None:
    work = [1.0, 4.0, 9.0, 16.0]
    line = [300e-6 + 50e-6 * bytes_read for bytes_read in work]
    assert intercept(work, line) == pytest.approx(300e-6)
    assert curvature(work, line) == pytest.approx(0.0, abs=1e-12)
    bent = [seconds * (1.1 if index == 3 else 1.0) for index, seconds in enumerate(line)]
    assert curvature(work, bent) > 0.01


def test_a_disturbed_round_does_not_widen_a_median_ratio() -> None:
    quiet = [1.0 + number / 1000 for number in range(20)]
    disturbed = [2.0 * value for value in quiet]
    disturbed[7] = 90.0
    ratio = paired_median_ratio(disturbed, quiet)
    assert (ratio.low, ratio.value, ratio.high) == pytest.approx((2.0, 2.0, 2.0))


def test_every_arm_runs_once_per_round_and_the_order_depends_on_the_seed_alone() -> None:
    def orders(seed: str) -> list[str]:
        ran: list[str] = []

        def arm(name: str) -> float:
            ran.append(name)
            return float(len(ran))

        found = in_rounds({name: lambda n=name: arm(n) for name in "abcd"}, 5, seed, lambda text: None)
        assert all(len(values) == 5 for values in found.values())
        assert all(sorted(ran[at : at + 4]) == list("abcd") for at in range(0, 20, 4))
        return ran

    assert orders("one") == orders("one") != orders("two")


# ---------------------------------------------------------------- perf

TORCH = "/site-packages/torch/lib/libtorch_cpu.so"
PYTHON = "/lib/libpython3.11.so.1.0"

KERNEL_SAMPLES = [
    ("mkl_blas_avx512_xsgemv", TORCH),
    ("mkl_blas_avx512_sgemm_scopy_right48_ea", TORCH),
    ("mkl_blas_avx512_sgemm_kernel_nocopy_NN_b1", TORCH),
    ("at::native::(anonymous namespace)::cpu_flash_attention<float, float, 32l, 512l, false>", TORCH),
    (
        "c10::function_ref<void (char**, long const*, long, long)>::callback_fn<at::native::AVX512::"
        "VectorizedLoop2d<at::native::(anonymous namespace)::silu_kernel(at::TensorIteratorBase&)>>",
        TORCH,
    ),
    ("kernel", "/cache/ab/cldz37mw2hsrmid4ns5f4efiutywx4.main.so"),
    ("cpp_fused_argmax_7", "/cache/ib/cib5difnrecxncnszy63.main.so"),
    ("__memmove_avx512_unaligned_erms", "/usr/lib/x86_64-linux-gnu/libc.so.6"),
    ("[unknown]", "//anon"),
]
HOST_SAMPLES = [
    ("_PyEval_EvalFrameDefault", PYTHON),
    ("_int_malloc", "/usr/lib/x86_64-linux-gnu/libc.so.6"),
    ("c10::impl::OperatorEntry::lookup", TORCH),
    ("at::_ops::index_put_::call", TORCH),
    ("at::TensorIteratorBase::build", TORCH),
    ("at::native::copy_impl", TORCH),
    (
        "c10::impl::wrap_kernel_functor_unboxed_<c10::impl::detail::WrapFunctionIntoFunctor_<at::Tensor>>",
        TORCH,
    ),
    ("torch::dynamo::(anonymous namespace)::GuardManager::check_nopybind", "libtorch_python.so"),
    ("inductor_entry_impl", "/cache/ib/cib5difnrecxncnszy63.main.so"),
    ("kernel@plt", "/cache/ab/cldz37mw2hsrmid4ns5f4efiutywx4.main.so"),
    ("clear_page_erms", "[kernel.kallsyms]"),
    ("__vdso_clock_gettime", "[vdso]"),
]


@pytest.mark.parametrize(("symbol", "binary"), KERNEL_SAMPLES)
def test_what_computes_on_elements_is_kernel(symbol: str, binary: str) -> None:
    assert side_of(symbol, binary) == "kernel"


@pytest.mark.parametrize(("symbol", "binary"), HOST_SAMPLES)
def test_what_only_leads_to_kernels_is_host(symbol: str, binary: str) -> None:
    assert side_of(symbol, binary) == "host"


def test_every_class_of_symbols_gives_its_reason() -> None:
    assert all(rule.reason and (rule.symbol or rule.binary) for rule in RULES)


def test_a_line_of_perf_script_is_read_with_its_instant_and_brackets_in_names() -> None:
    line = " 3824.868798141:      7fdd7c4c181a torch::(anonymous namespace)::check (int) (/lib/libtorch.so)\n"
    assert parse(line) == (3824868798141, "torch::(anonymous namespace)::check (int)", "/lib/libtorch.so")
    assert parse("# a comment") is None


def test_samples_are_counted_in_the_window_in_which_they_were_taken() -> None:
    windows = [Window("eager", 100, 200, 1e-3, 6e-4), Window("eager", 300, 400, 1e-3, 6e-4)]
    windows.append(Window("eager", 500, 600, 1e-3, 6e-4))
    seen = Recording()
    taken = [(90, "kernel"), (110, "kernel"), (190, "host"), (250, "kernel"), (350, "kernel")]
    seen.samples = [Sample(instant, side) for instant, side in taken]
    assert kernel_shares(windows, seen) == [0.5, 1.0, None]
    assert windows[0].twin_share == pytest.approx(0.4)


# ---------------------------------------------------------------- witnesses and injected


def test_the_family_of_widths_ends_with_the_model_itself_and_keeps_layers_heads_and_context() -> None:
    config = CONFIGS["tiny"]
    configs = family(config)
    assert configs[-1] == config
    assert [c.width for c in configs] == [48, 96, 144, 192]
    assert {(c.layers, c.heads, c.kv_heads, c.context) for c in configs} == {(6, 6, 2, 512)}
    assert all(c.head_width % 8 == 0 for c in configs)


def test_a_burden_runs_once_per_step_in_the_steps_grad_mode_and_changes_no_result() -> None:
    model = Transformer(CONFIGS["tiny"].hollow(), 1).eval()
    buffers = allocate(model, [1], 1)[1]
    seen: list[bool] = []
    plain = build_step(MODES["inference_mode"], model)
    burdened = build_step(
        MODES["inference_mode"],
        model,
        InjectedWork(kernel=lambda: seen.append(torch.is_inference_mode_enabled())),
    )
    expected = plain(*buffers.arguments("decode"))[0].clone()
    assert torch.equal(burdened(*buffers.arguments("decode"))[0], expected)
    assert seen == [True]


# ---------------------------------------------------------------- running and reporting


def test_every_bench_check_has_its_function_and_its_words() -> None:
    assert bench.CHECKS.keys() == BENCH.keys()


def test_an_unknown_check_is_refused_with_those_there_are() -> None:
    assert chosen(["twice", "ladder"]) == (["ladder"], ["twice"])
    assert chosen(None) == (list(BENCH), list(SERVICE))
    with pytest.raises(ValueError, match=r"no check 'laddr': try some of ladder, "):
        chosen(["laddr"])


def test_an_undecided_row_is_measured_once_more_and_the_others_stay() -> None:
    calls: list[int] = []

    def check() -> list[CheckResult]:
        calls.append(1)
        wide = interval(0.5, 1.5) if len(calls) == 1 else interval(0.9, 1.1)
        return [
            judged("wide", "b", wide, least=0.8, most=1.2),
            exact("sure", "b", True, float(len(calls)), "s"),
        ]

    wide, sure = settle("both", check)
    assert len(calls) == 2
    assert (wide.verdict, wide.repeated) == ("pass", True)
    assert (sure.value, sure.repeated) == (1.0, False)


class Busy(Disturbance):
    """As if somebody else had had the core for this share of the time."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self._share = share

    def take_share(self) -> float:
        return self._share


def test_a_failure_on_a_disturbed_core_is_undecided_and_a_pass_stands() -> None:
    rows = [judged("bad", "b", interval(2, 3), most=1), judged("good", "b", interval(0, 1), most=1)]
    rows.append(exact("sure", "b", False, 1.0, "s"))
    assert [row.verdict for row in Busy(0.2).excuse(rows)] == ["undecided", "pass", "fail"]
    assert "20%" in Busy(0.2).excuse(rows)[0].note
    assert Busy(0.001).excuse(rows) == rows


def test_time_in_which_a_thread_did_not_run_is_a_disturbance() -> None:
    disturbance, event = Disturbance(), Event()
    with disturbance.noted():
        event.wait(0.05)
    assert disturbance.take_share() > 0.5
    assert disturbance.take_share() == 0.0


def test_a_check_that_breaks_is_a_failed_row_that_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    def check() -> list[CheckResult]:
        raise RuntimeError("no such thing")

    (row,) = settle("broken", check)
    assert row.verdict == "fail"
    assert "RuntimeError: no such thing" in row.note
    assert "no such thing" in capsys.readouterr().err


def test_the_report_has_the_fields_that_other_programs_read(tmp_path: Path) -> None:
    rows = [judged("a", "≤ 1", interval(0.5, 0.6), most=1.0), not_measurable("b", "all", "no GPU")]
    machine: dict[str, str | int] = {"cpu": "A CPU", "device": "A CPU", "torch": "2.13.0", "threads": 1}
    report = new_report(rows, machine, ["eager"], 12.0)
    path = write(report, tmp_path / "selftest")
    assert path.name == FILE
    document = json.loads(path.read_text())
    assert {"format_version", "commit", "dirty", "machine", "cpu", "created", "rows"} <= document.keys()
    assert (document["passed"], document["detail"]) == (True, "1 pass, 1 not measurable here")
    assert document["format_version"] == 1
    assert document["machine"] == "A CPU"
    for row in document["rows"]:
        assert {"name", "bound", "value", "low", "high", "verdict", "note"} <= row.keys()
    assert document["rows"][1]["value"] is None
    assert read(path) == report
    assert report.failed == []


def test_a_duration_is_shown_in_its_unit_and_a_missing_value_as_a_dash() -> None:
    seconds = judged("x", "b", Interval(28.9e-6, 28.7e-6, 29.3e-6, 9), unit="s")
    assert measured(seconds) == "28.9 [28.7, 29.3] µs"
    assert measured(not_measurable("x", "b", "why")) == "–"


def test_settings_cross_to_the_bench_and_to_the_service_as_they_are() -> None:
    settings = Settings(modes=["eager", "compiled"], device="cpu")
    assert "--modes=eager,compiled" in flags(settings)
    assert "--batch-sizes=1,4,16" in flags(settings)
    sent = msgspec.json.encode(settings.engine_settings(""))
    assert msgspec.json.decode(sent, type=EngineSettings).modes == ["eager", "compiled"]


class Answers:
    """Stands where a service would: every request takes the same made-up time."""

    modes = ("eager",)

    def __init__(self, **changes: float) -> None:
        self._timings = {
            "queue_seconds": 0.0,
            "dispatch_seconds": 2e-3,
            "kernel_seconds": 1e-3,
            "sync_wait_seconds": None,
            "other_seconds": 1e-3,
            "total_seconds": 4e-3,
            "border_seconds": 3e-4,
            "tokenise_seconds": 1e-4,
            **changes,
        }

    def connection(self) -> Answers:
        return self

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to close."""

    def generate(self, mode: str) -> dict[str, float | None]:
        return dict(self._timings)


def verdicts(answers: Answers) -> list[str]:
    rows = request_parts(answers, lambda text: None, {"eager": 0.6e-3})  # type: ignore[arg-type]
    return [row.verdict for row in rows]


def test_parts_pass_where_they_are_positive_sum_up_and_their_pieces_agree() -> None:
    assert verdicts(Answers()) == ["pass", "pass", "pass"]


def test_a_negative_part_a_wrong_sum_and_a_missing_piece_each_fail_their_own_row() -> None:
    assert verdicts(Answers(kernel_seconds=-1e-3, total_seconds=2e-3)) == ["fail", "pass", "pass"]
    assert verdicts(Answers(total_seconds=5e-3)) == ["pass", "fail", "pass"]
    assert verdicts(Answers(border_seconds=1e-5)) == ["pass", "pass", "fail"]
