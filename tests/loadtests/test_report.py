"""The report agrees with the rows, needs no network, and opens with the answer."""

from __future__ import annotations

import hashlib
import html
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from plotly.offline import get_plotlyjs
from rich.console import Console

from dashboards.theme import MODE_COLOURS
from loadtests.plan.presets import PRESETS
from loadtests.report import plots
from loadtests.report.findings import Findings
from loadtests.report.formatting import colour, significant
from loadtests.report.page import PLOTLY_BUNDLE, Section, Text
from loadtests.report.report_files import all_plots, print_findings
from loadtests.report.results import read_results
from loadtests.report.sections import sections
from loadtests.report.surroundings import environment, reproduce
from loadtests.report.wording import saved
from loadtests.run.run_file import read_run
from service.front.settings import read_advice
from service.modes import MODES, Effect, Mode, default_modes
from service.statistics.boundedness import decode_bytes
from tests.support.fake_service import STEP_SECONDS
from tests.support.made_plans import make_plan, make_report
from tests.support.made_results import (
    ALIKE,
    CLEAR,
    edit_rows,
    edit_run,
    make_results,
    with_compilations,
    with_intervals,
    with_machine,
    with_samples,
)

PLAN = make_plan("quick", 1, ["eager", "inference_mode", "compiled"], [1, 4])


def test_a_service_reads_what_the_report_has_chosen(tmp_path: Path) -> None:
    made = make_results(tmp_path, plan=PLAN)
    make_report(made)
    found = read_advice(made)
    assert [(one.batch_size, one.mode) for one in found.batches] == [(1, "compiled"), (4, "compiled")]
    assert found.batches[0].reason.endswith("× the speed of inference_mode")
    assert (found.model, found.model_hash, found.device_name) == ("tiny", "0123456789ab", "a CPU")
    document = json.loads((made / "advice.json").read_text())
    speedup = document["batches"][0]["speedup"]
    assert (speedup["vs"], document["commit"]) == ("inference_mode", read_run(made).environment["commit"])
    assert document["batches"][0]["state"] == "faster"
    assert document["left_out"] == ["no_grad", "reduce-overhead", "max-autotune", "aot-inductor"]
    assert speedup["low"] < speedup["ratio"] < speedup["high"]


ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def clear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reported sweep in which `compiled` clearly wins."""
    folder = make_results(tmp_path_factory.mktemp("clear"))
    make_report(folder)
    return folder


def page(folder: Path) -> str:
    """The page without plotly's own code, which contains almost any word."""
    text = (folder / "report.html").read_text()
    return re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)


def test_the_known_winner_is_the_headline_everywhere(clear: Path) -> None:
    headline = make_report(clear)
    assert headline["text"].startswith("Batch 1, 4 and 16: compiled, 1.7")
    assert headline["text"].endswith("Not measured: modes max-autotune and aot-inductor.")
    assert headline["left_out"] == ["max-autotune", "aot-inductor"]
    assert headline["valid"] is True
    assert headline["provisional"] is False
    assert (clear / "report.html").stat().st_size <= 1_500_000
    assert [batch["ship"] for batch in headline["batches"]] == ["compiled"] * 3
    assert {(b["baseline"], b["state"]) for b in headline["batches"]} == {("inference_mode", "faster")}
    assert all(b["speedup"]["low"] < 1.75 < b["speedup"]["high"] for b in headline["batches"])
    assert all(b["speedup_over_eager"]["value"] == pytest.approx(2.5, rel=0.05) for b in headline["batches"])
    assert f"<h1>{headline['text']}</h1>" in page(clear)
    assert f"# {headline['text']}" in (clear / "report.md").read_text()
    assert json.loads(json.dumps(headline)) == headline


def test_code_that_autotunes_is_told_from_the_mode_that_was_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for mode in ("max-autotune", "aot-inductor"):
        monkeypatch.setitem(STEP_SECONDS, mode, STEP_SECONDS["compiled"])
    said = "max_autotune in its code is an option of its package, and not the mode max-autotune"
    relative = {**CLEAR, "aot-inductor": 0.3, "max-autotune": 0.35}
    for modes, told in (
        (["compiled", "aot-inductor"], 1),
        (["max-autotune", "aot-inductor"], 0),
        (["compiled"], 0),
    ):
        plan = make_plan("quick", 1, ["eager", "inference_mode", *modes], [1, 4])
        folder = make_results(tmp_path / "-".join(modes), relative, plan=plan)
        text = make_report(folder)["text"]
        assert f"Batch 1 and 4: {modes[-1]}, " in text
        assert page(folder).count(said) == told


def test_where_all_modes_are_equivalent_inference_mode_is_kept(tmp_path: Path) -> None:
    headline = make_report(make_results(tmp_path, ALIKE, scatter=0.004))
    answer = "Batch 1, 4 and 16: inference_mode, nothing is faster by more than 5 %."
    assert headline["text"].startswith(answer)
    assert {(b["ship"], b["state"]) for b in headline["batches"]} == {("inference_mode", "equivalent")}
    assert "no detectable difference" in page(tmp_path)
    assert {tuple(saved(verdict)) for verdict in Findings(read_results(tmp_path)).main} == {()}
    assert not re.search(r'<span class="(faster|slower)">', page(tmp_path))


def test_where_noise_hides_the_answer_it_is_called_not_resolved_and_the_rounds_that_would_tell(
    tmp_path: Path,
) -> None:
    near = CLEAR | {"compiled": 0.401, "reduce-overhead": 0.4}
    headline = make_report(make_results(tmp_path, near, scatter=0.2))
    assert {batch["state"] for batch in headline["batches"]} == {"not resolved"}
    assert "or compiled, not resolved; " in headline["text"] or "or reduce-overhead, not" in headline["text"]
    assert re.search(r"may be the right one: \d+ rounds do not tell", page(tmp_path))
    assert re.search(r"about [\d,]+ rounds would", page(tmp_path))


def test_too_few_rounds_are_reported_as_undecided(tmp_path: Path) -> None:
    few = msgspec.structs.replace(make_plan("quick", 1), rounds=5, rounds_most=None)
    headline = make_report(make_results(tmp_path, plan=few))
    assert headline["text"].startswith("Not resolved: fewer than 8 rounds")
    assert [batch["ship"] for batch in headline["batches"]] == [None] * 3
    assert "fewer than 8 rounds: too few to tell modes apart" in page(tmp_path)
    assert all(batch["speedup"] is batch["payback_requests"] is None for batch in headline["batches"])
    assert json.loads((tmp_path / "advice.json").read_text())["batches"] == []


def test_a_sweep_that_was_interrupted_within_its_first_round_is_reported(tmp_path: Path) -> None:
    """With a batch size whose last mode has no request."""
    plan = make_plan("quick", 2, ["eager", "inference_mode", "compiled"], [1, 4])
    plan = msgspec.structs.replace(plan, rounds=1, rounds_most=None)
    rows = make_results(tmp_path, plan=plan, complete=False) / "requests.jsonl"
    rows.write_text("".join(rows.read_text().splitlines(keepends=True)[:-3]))
    measured = [{one.cell.mode for one in verdict.modes} for verdict in findings(tmp_path).main]
    assert [len(modes) for modes in measured] == [3, 2]
    assert make_report(tmp_path)["valid"] is False


def test_a_failed_gate_stands_before_everything_else(tmp_path: Path) -> None:
    headline = make_report(make_results(tmp_path, fail=1))
    assert headline["valid"] is False
    assert headline["failed_gates"] == ["no errors"]
    text = page(tmp_path)
    assert 0 < text.index("do not decide from this") < text.index("<h1>")
    assert (tmp_path / "report.md").read_text().startswith("**NOT VALID")
    assert printed(tmp_path, 120).startswith("NOT VALID  no errors: 1 of")
    with pytest.raises(ValueError, match="is not valid"):
        read_advice(tmp_path)


@pytest.mark.parametrize(("switches", "scatter"), [(5, 0.01), (0, 0.4)])
def test_an_answer_from_a_busy_machine_is_called_provisional(
    tmp_path: Path, switches: int, scatter: float
) -> None:
    headline = make_report(make_results(tmp_path, switches=switches, scatter=scatter))
    assert ("cells were disturbed, and eager differs" in headline["text"]) is (switches > 0)
    assert ("Provisional: eager differs from itself" in headline["text"]) is (switches == 0)
    assert headline["provisional"] is True
    assert "measure again on a quiet machine" in page(tmp_path)


def test_the_page_refers_to_nothing_outside_itself(clear: Path) -> None:
    text = page(clear)
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:|#)""", text)
    assert not re.search(r"@import|url\(|https?://", text)
    assert (clear / "report.html").read_text().count("plotly.js (basic - minified) v") == 1


def test_the_vendored_bundle_is_the_one_named_beside_it_and_of_the_version_of_figures() -> None:
    folder = PLOTLY_BUNDLE.parent
    assert hashlib.sha256(PLOTLY_BUNDLE.read_bytes()).hexdigest() in (folder / "README.md").read_text()
    assert "MIT License" in (folder / "LICENSE.plotly").read_text()
    versions = [
        re.search(r"^\* plotly\.js.* v(\S+)$", text[:200], flags=re.MULTILINE)
        for text in (PLOTLY_BUNDLE.read_text(), get_plotlyjs())
    ]
    assert all(versions)
    assert len({found[1] for found in versions if found}) == 1


def test_every_plot_has_a_caption_only_traces_of_the_basic_bundle_and_no_end_of_its_script(
    clear: Path,
) -> None:
    drawn = list(all_plots(Findings(read_results(clear))))
    shown = ["speedup", "parts", "latency", "throughput", "index", "trade-off", "timeline"]
    assert [plot.id for plot in drawn] == shown
    captions = re.findall(r"<figcaption>\s*<h3>(.+?)</h3>\s*(.+?)</figcaption>", page(clear), flags=re.DOTALL)
    assert len(captions) == len(drawn)
    assert {trace.type for plot in drawn for trace in plot.figure.data} <= {"scatter", "bar", "pie"}
    for plot in drawn:
        plot.figure.update_layout(title={"text": "</script>"})
        assert "</script" not in plot.json
        assert json.loads(plot.json)["layout"]["title"]["text"] == "</script>"


def test_without_kernel_times_a_gpu_report_states_it_and_shows_the_wait(tmp_path: Path) -> None:
    make_report(make_results(tmp_path, device="cuda"))
    text = page(tmp_path)
    assert "kernel time is not measured here" in text
    assert "sync wait" in text
    assert "Not proved" not in text


def test_only_a_split_that_was_estimated_is_called_not_proved(tmp_path: Path) -> None:
    rows = make_results(tmp_path) / "requests.jsonl"
    make_report(tmp_path)
    for text in (
        page(tmp_path).partition("<h2>")[0],
        (tmp_path / "report.md").read_text(),
        printed(tmp_path, 120),
    ):
        assert "not proved on this machine" in text
    rows.write_text(rows.read_text().replace('"dispatch":"sampled"', '"dispatch":"measured"'))
    make_report(tmp_path)
    for text in (page(tmp_path), (tmp_path / "report.md").read_text(), printed(tmp_path, 120)):
        assert "not proved" not in text
        assert "Dispatch is estimated" not in text


def test_an_answer_has_the_name_that_modes_takes_what_that_runs_as_and_its_pytorch(tmp_path: Path) -> None:
    headline = make_report(make_results(tmp_path, CLEAR | {"reduce-overhead": 0.3}))
    assert headline["text"].startswith("Batch 1, 4 and 16: reduce-overhead, 2.3")
    assert {(b["ship"], b["effective"]) for b in headline["batches"]} == {("reduce-overhead", "compiled-cpp")}
    cards = page(tmp_path).partition("<h2>")[0]
    lines = html.unescape(cards)
    assert '--modes reduce-overhead<span class="under">runs as compiled-cpp</span>' in lines
    options = "fullgraph=True, dynamic=False, options={'cpp_wrapper': True}"
    assert f"step = torch.compile(lambda x: model(x), {options})" in lines
    assert "with torch.inference_mode(): output = step(x)" in lines
    for text in (page(tmp_path), (tmp_path / "report.md").read_text()):
        assert "a CPU has no CUDA graphs" in text
    assert "→ faster: reduce-overhead, 2.3" in printed(tmp_path, 120)


def test_everything_that_a_run_recorded_is_in_page_and_markdown(tmp_path: Path) -> None:
    """Of a service that records everything, on a machine that was busy in two rounds."""
    folder = with_intervals(make_results(tmp_path), 0.1)
    with_compilations(with_samples(folder, lambda row: (3 * (8 + row["batch_size"]), 72, 0)))
    with_machine(folder, [9e9, 9e9, 5e9, *[9e9] * 5], [0.0] * 7 + [0.05])

    def faults(row: dict[str, Any]) -> None:
        row["prefill"]["minor_faults"] = 2600 if row["mode"] == "eager" else 0
        row["decode"]["minor_faults"] = 0

    edit_rows(folder, faults)
    edit_run(folder, lambda run: run.engine.update(memory={"resident": 700 * 2**20}))
    make_report(folder)
    for text in (page(folder), (folder / "report.md").read_text()):
        for expected in RECORDED:
            assert expected in text.replace("Cold start", "cold start"), expected


RECORDED = (
    "resident 700 MiB", "context 512", "padded to 16", "2,600", "page faults",
    "attended cache positions in the last step 64", "first token", "round 3 (memory read at 5.0 GB/s",
    "round 8 (steal time 5.0%", "saved per request are dispatch", "kernel share",
    "mean − typical", "cold start", "interval: ",
)  # fmt: skip


def test_what_an_old_folder_did_not_record_is_said_to_be_unknown(clear: Path) -> None:
    for text in (page(clear), (clear / "report.md").read_text()):
        assert "padded to unknown" in text
        assert "interval unknown" in text
        assert "unknown: run once with an empty compile cache" in text
        assert "not recorded" in text
        assert "page faults</th>" not in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "folder", sorted((ROOT / "benchmarks").glob("*/requests.jsonl")), ids=lambda p: p.parent.name
)
def test_every_committed_run_can_be_reported_again(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder.parent, tmp_path / folder.parent.name)
    headline = make_report(copy)
    assert [one["batch_size"] for one in headline["batches"]] == read_run(copy).plan.batch_sizes
    assert f"<h1>{headline['text']}</h1>".replace("'", "&#39;") in page(copy)


def printed(folder: Path, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_findings(findings(folder), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return str(text)


def test_the_terminal_has_a_row_per_mode_of_which_nothing_that_goes_to_a_pipe_is_cut(clear: Path) -> None:
    text = printed(clear, 80)
    assert "…" not in text
    for mode in CLEAR:
        assert len(re.findall(rf"^ {mode}\b", text, flags=re.MULTILINE)) >= 3
    assert "→ faster: compiled, 1.7" in text
    assert "Batch 1, 4 and 16: compiled" in text
    assert "saved per request are dispatch" in text


def test_a_valid_run_says_what_was_checked_and_no_count_that_the_table_of_validity_contradicts(
    clear: Path,
) -> None:
    (line,) = re.findall(r"^- (Valid run.*)$", (clear / "report.md").read_text(), re.MULTILINE)
    assert "no check of errors, parity, counts or load failed" in line
    assert not re.search(r"\d", line)


def test_the_terminal_has_the_answer_table_before_the_headline_and_its_pytorch_in_one_piece(
    tmp_path: Path,
) -> None:
    made = make_results(tmp_path, CLEAR | {"reduce-overhead": 0.3})
    answered = printed(made, 80).rpartition("→ faster: reduce-")[2].partition("\nBatch 1, 4 and 16:")[0]
    heads = answered.partition("──")[0].split()
    assert {"ship", "inference_mode", "verdict", "eager", "time", "pay"} <= set(heads)
    assert (
        len(
            re.findall(r"^ (?:1|4|16) +--modes reduce-overhead.*× \(.* faster .*× \(", answered, re.MULTILINE)
        )
        == 3
    )
    assert "ms dispatch" in answered
    effect = MODES["reduce-overhead"].cpu
    assert f"--modes reduce-overhead in PyTorch:\n{effect.in_pytorch('inference_mode')}\n" in answered


def test_the_answer_says_after_how_many_requests_this_and_all_batch_sizes_are_paid_back(
    tmp_path: Path,
) -> None:
    made = with_compilations(make_results(tmp_path), seconds=0.6, cold_seconds=12.0)
    headline = make_report(made)
    text = (made / "report.md").read_text().partition("**Why")[0]
    for one in headline["batches"]:
        assert one["all_payback_requests"] == pytest.approx(3 * one["payback_requests"], abs=3)
        assert one["all_cold_payback_requests"] == pytest.approx(3 * one["cold_payback_requests"], abs=3)
        assert f"; {one['all_payback_requests']:,} (" in text
    assert ") if all are (3.60 s); " in text
    assert ") if all are, from an empty cache (72.0 s)" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0312, "0.0312"), (4.567, "4.57"), (99.96, "100"), (12345.0, "12,300"), (0.9999, "1.00"), (0, "0"),
        (float("inf"), "∞"),
    ],
)  # fmt: skip
def test_figures_have_three_significant_digits_and_no_exponent(value: float, text: str) -> None:
    assert significant(value) == text


def test_of_very_many_requests_only_some_are_drawn_and_the_caption_says_so(
    clear: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = Findings(read_results(clear))
    count = findings.results.rows.height
    monkeypatch.setattr(plots, "MOST_POINTS", 100)
    plot = plots.timeline(findings)
    drawn = sum(len(trace.x) for trace in plot.figure.data)
    assert 50 < drawn <= 100
    every = -(-count // 100)
    assert plot.caption.startswith(f"One in {every} of {count:,} closed-loop requests")
    assert "Every closed-loop request in the order" in page(clear)


@pytest.mark.browser
def test_the_page_draws_itself_offline_and_fits_a_phone(clear: Path) -> None:
    from tests.support.browser import NARROW, chromium, tab

    with chromium() as browser, tab(browser, clear.as_uri(), NARROW, "dark", offline=True) as opened:
        opened.open("/report.html", ready="#timeline .main-svg")
        assert opened.page.locator(".plot .main-svg").count() >= 6
        assert opened.reach() <= NARROW[0]


SIXTH = "sixth-mode"


def test_a_row_added_to_the_ladder_is_planned_compared_and_shipped_in_a_colour_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    row = Mode(SIXTH, "inference_mode", "launches, without fusion", cuda=Effect(SIXTH), cpu=Effect(SIXTH))
    monkeypatch.setitem(MODES, SIXTH, row)
    monkeypatch.setitem(STEP_SECONDS, SIXTH, (0.0004, 0.0005))
    assert all(make_plan(preset).modes == default_modes() for preset in PRESETS)
    headline = make_report(make_results(tmp_path, CLEAR | {SIXTH: 0.2}))
    assert {batch["ship"] for batch in headline["batches"]} == {SIXTH}
    page = (tmp_path / "report.html").read_text()
    assert colour(SIXTH) not in MODE_COLOURS.values()
    assert re.search(rf'style="--mode: {colour(SIXTH)}"', page)
    assert f'"name": "{SIXTH}"' in page


def findings(folder: Path) -> Findings:
    return Findings(read_results(folder))


def number(text: str) -> float:
    return float(text.split()[0].rstrip("×").replace(",", ""))


def ends(cell: Text) -> list[float]:
    return [number(end) for end in cell.span.split("–")]


# ---------------------------------------------------------------- fusion × launch

RELATIVE = CLEAR | {"inference_mode": 0.8, "cuda-graph": 0.4, "compiled": 0.5, "reduce-overhead": 0.4}
DESIGNED = list(RELATIVE)


def designed(folder: Path, modes: list[str] = DESIGNED, device: str = "cuda", replayed: bool = True) -> Path:
    plan = make_plan("quick", 1, modes=modes, batch_sizes=[1, 16])
    make_results(folder, RELATIVE, plan=plan, scatter=0.002, device=device)
    if replayed:
        edit_run(folder, lambda run: [one.update(effective=one["mode"], reason=None) for one in run.modes])
    return folder


def section_of(folder: Path, title: str) -> Section | None:
    return next((one for one in sections(findings(folder), []) if one.title == title), None)


@pytest.fixture
def _graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STEP_SECONDS, "cuda-graph", (0.0004, 0.0005))


@pytest.mark.usefixtures("_graphs")
def test_each_factor_of_fusion_and_launch_is_priced_without_and_with_the_other(tmp_path: Path) -> None:
    section = section_of(designed(tmp_path), "Fusion × launch")
    assert [table.title for table in section.tables] == ["Batch 1", "Batch 16"]
    for table in section.tables:
        plain, fused, fusing = table.rows
        ratios = [plain[3], fused[3], *fusing[1:]]
        assert [number(one.text) for one in ratios] == pytest.approx([2, 1.25, 1.6, 1, 2], rel=0.02)
        assert all(ends(one)[0] <= number(one.text) <= ends(one)[1] for one in ratios)
    latencies = [number(cell.text) for row in section.tables[0].rows[:2] for cell in row[1:3]]
    assert latencies == pytest.approx([16, 8, 10, 8], rel=0.02)


@pytest.mark.usefixtures("_graphs")
@pytest.mark.parametrize(
    "change",
    [{"device": "cpu"}, {"modes": [one for one in DESIGNED if one != "cuda-graph"]}, {"replayed": False}],
)
def test_fusion_and_launch_are_shown_only_where_all_four_modes_ran_as_themselves(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    assert section_of(designed(tmp_path, **change), "Fusion × launch") is None


# ---------------------------------------------------------------- roofline


@pytest.mark.parametrize(("canary", "rate"), [(5e9, 10e9), (20e9, 20e9)])
def test_each_mode_and_batch_has_its_bytes_and_its_arithmetic_over_its_kernels(
    tmp_path: Path, canary: float, rate: float
) -> None:
    """By the rate that the engine read, or that a round's canary did where that is higher."""
    make_results(tmp_path)
    assert section_of(tmp_path, "Roofline of decode").note.startswith("Unknown:")
    step_bytes = {"weights": 12_000_000, "cache_per_position": 6_144, "activations_per_row": 70_000}
    known = {
        "memory_bandwidth": {"kind": "read", "bytes_per_second": 10e9, "buffer_bytes": 12_000_000},
        "matrix_rate": {"flops_per_second": 50e9, "size": 512}, "step_bytes": step_bytes,
        "step_flops": {"per_row": 6_000_000, "per_position": 4_608},
    }  # fmt: skip
    edit_run(with_machine(with_intervals(tmp_path), [canary], [0.0]), lambda run: run.engine.update(known))
    (table,) = section_of(tmp_path, "Roofline of decode").tables
    summaries = [one for verdict in findings(tmp_path).main for one in verdict.modes]
    for row, summary in zip(table.rows, summaries, strict=True):
        batch, decode = summary.cell.batch_size, summary.main
        positions = summary.prompt_tokens / batch + (decode.steps + 1) / 2
        kernel = decode.kernel_seconds / decode.steps
        bandwidth = 100 * decode_bytes(step_bytes, batch, positions) / kernel / rate
        arithmetic = 100 * batch * (6_000_000 + 4_608 * positions) / kernel / 50e9
        assert [number(cell.text) for cell in row[5:7]] == pytest.approx([bandwidth, arithmetic], rel=0.006)
        assert ends(row[5])[0] < bandwidth < ends(row[5])[1]
        assert row[7].text == ("memory" if bandwidth > arithmetic else "arithmetic")


# ---------------------------------------------------------------- where it was measured


def lines(folder: Path) -> dict[str, str]:
    return dict(environment(read_run(folder)))


def test_the_load_generators_processes_are_always_shown(tmp_path: Path) -> None:
    assert lines(make_results(tmp_path))["load generator"] == "one process on core 0"
    edit_run(tmp_path, lambda run: run.settings.update(workers=3))
    assert lines(tmp_path)["load generator"] == "3 load processes and their master, all on core 0"
    assert "--workers 3" in reproduce(read_run(tmp_path))[-1]


NOTES = {"sharing_note": "other processes use this GPU: pid 7", "profiler_note": "a request was profiled"}


def test_what_disturbed_the_engine_is_said_where_it_was_measured_and_where_trust_is(tmp_path: Path) -> None:
    assert not {"shared device", "profiler"} & lines(make_results(tmp_path)).keys()
    edit_run(tmp_path, lambda run: run.engine.update(NOTES))
    found = lines(tmp_path)
    assert [found["shared device"], found["profiler"]] == list(NOTES.values())
    make_report(tmp_path)
    page = (tmp_path / "report.md").read_text()
    assert "Other processes used the GPU meanwhile" in page
    assert "The profiler was attached" in page


def test_a_service_that_does_not_say_its_machine_is_unknown(tmp_path: Path) -> None:
    edit_run(make_results(tmp_path), lambda run: run.environment.clear())
    assert lines(tmp_path)["machine"] == "unknown: the service is of a version that does not say"
    make_report(tmp_path)
    assert "unknown processor" in (tmp_path / "report.md").read_text()
    assert "None" not in (tmp_path / "report.md").read_text()
