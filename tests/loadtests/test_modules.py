"""A module of the user's own: cells of calls, how many, what is compared, and the report of it."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from loadtests.compare.builds import compare_builds, markdown
from loadtests.compare.runs import read_entries
from loadtests.peers.results import PeersError
from loadtests.peers.run import PeersPlan, run_peers
from loadtests.plan.cells import Cell, order
from loadtests.plan.presets import describe
from loadtests.report.findings import Findings
from loadtests.report.report_files import all_plots, print_findings
from loadtests.report.results import read_results
from loadtests.report.sections import sections
from loadtests.run.requests import body
from loadtests.run.rows import ROWS_FILE, RowPhase, RowsError
from loadtests.run.run_file import read_run
from loadtests.run.sweep import run_sweep
from loadtests.run.target import ModeFailed, Target, TargetError
from tests.support.fake_service import STEP_SECONDS, Script, fake_service
from tests.support.made_plans import make_plan, make_report, read_rows
from tests.support.made_results import CLEAR, edit_run, make_module, make_results
from tests.support.serving import running
from tests.support.sweeping import CLIENT_CPU, every_request_of, failed, measured, raw_rows, resumed, swept

MODES = ["eager", "inference_mode", "compiled"]

# ---------------------------------------------------------------- cells and requests


def test_a_plan_of_calls_has_each_cell_once_and_neither_prompts_nor_arrivals() -> None:
    plan = make_plan("full", 1, MODES, [1, 8]).of_calls({(1, None): 32, (8, None): 4})
    names = [cell.name for cell in plan.cells]
    assert len(set(names)) == len(names)
    assert {"compiled b=8 c=1", "eager b=8 c=1 control"} <= set(names)
    assert {(cell.batch_size, cell.calls) for cell in plan.cells} == {(1, 32), (8, 4)}
    assert {(cell.prompt_set, cell.new_tokens, cell.open_loop) for cell in plan.cells} == {
        (None, None, False)
    }
    assert [group[0] for group in plan.main_groups] == [1, 8]
    assert len(order(plan, 1)) == len(plan.cells)
    assert "short" not in describe(plan, "ranker.py:build")


def test_each_size_is_a_cell_and_a_group_of_its_own_the_first_the_main_one() -> None:
    plan = make_plan("quick", 1, MODES, [1, 8]).of_calls(
        {(batch, size): 4 for batch in (1, 8) for size in ("128", "512")}
    )
    assert len({cell.name for cell in plan.cells}) == len(plan.cells)
    assert {"compiled b=8 size=128 c=1", "eager b=8 size=512 c=1 control"} <= {one.name for one in plan.cells}
    assert {group[:2] for group in plan.main_groups} == {(1, "size=128"), (8, "size=128")}
    cell = next(one for one in plan.cells if one.size == "512")
    assert json.loads(body(plan, [], cell, 1, 0))["size"] == "512"


def test_the_number_of_calls_is_no_part_of_what_is_compared() -> None:
    """Sweeps of one build may choose different numbers, and are compared all the same."""
    few, many = (Cell(mode="eager", batch_size=1, prompt_set=None, new_tokens=None, calls=n) for n in (4, 64))
    assert (few.name, few.group) == (many.name, many.group)
    assert few.work == {"batch_size": 1, "calls": 4}


def test_all_modes_of_a_round_are_called_on_the_same_inputs() -> None:
    plan = make_plan("quick", 3, MODES, [8]).of_calls({(8, None): 4})
    eager, compiled = (cell for cell in plan.cells if cell.mode in ("eager", "compiled") and not cell.control)
    sent = json.loads(body(plan, [], eager, 2, 0))
    assert sent == json.loads(body(plan, [], compiled, 2, 0))
    assert (sent["batch_size"], sent["calls"], set(sent)) == (8, 4, {"batch_size", "calls", "seed"})
    others = [json.loads(body(plan, [], eager, number, index))["seed"] for number, index in ((3, 0), (2, 1))]
    assert len({sent["seed"], *others}) == 3
    assert 0 <= sent["seed"] < 2**63


def test_what_is_compared_of_a_module_is_one_call_without_what_is_around_it(tmp_path: Path) -> None:
    row = next(one for one in read_rows(make_module(tmp_path)) if one.counts)
    forward = msgspec.structs.replace(
        row.forward or RowPhase(steps=0), steps=5, period_seconds=0.02, wall_seconds=0.015
    )
    assert msgspec.structs.replace(row, forward=forward).compared_seconds == pytest.approx(0.003)
    forward = msgspec.structs.replace(forward, sync_wait_seconds=0.001)
    assert msgspec.structs.replace(row, forward=forward).compared_seconds == pytest.approx(0.004)
    with_latency = msgspec.structs.replace(row, forward=None, latency_from_intended_seconds=0.7)
    assert with_latency.compared_seconds == 0.7


# ---------------------------------------------------------------- sweeps


@pytest.fixture
def script() -> Script:
    return Script(module=True)


@pytest.fixture
def small() -> Any:
    plan = make_plan("quick", 2, MODES, [1, 16])
    return msgspec.structs.replace(plan, rounds=8, rounds_most=None)


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_sweep_of_a_module_chooses_its_calls_once_and_is_valid(
    tmp_path: Path, script: Script, small: Any
) -> None:
    out = io.StringIO()
    result = swept(tmp_path, script, small, out)
    assert failed(result) <= {CLIENT_CPU}, [gate.detail for gate in result.failed]
    run = read_run(tmp_path)
    calls = {cell.batch_size: cell.calls for cell in run.plan.cells}
    wanted = {batch: round(0.05 / (dispatch + kernel * batch)) for batch, (dispatch, kernel) in
              [(1, STEP_SECONDS["eager"]), (16, STEP_SECONDS["eager"])]}  # fmt: skip
    assert calls == wanted
    assert "calls per request, in every mode: 24 at batch 1, 5 at batch 16" in out.getvalue()
    rows = raw_rows(tmp_path)
    assert {(row["mode"], row["batch_size"], row["calls"]) for row in rows} == {
        (mode, batch, count) for mode in MODES for batch, count in calls.items()
    }
    assert not {"prompt_set", "new_tokens", "text_digest"} & set().union(*rows)
    counters = next(gate for gate in result.gates if gate.name == "client rows = server's count")
    assert counters.passed
    assert counters.detail.startswith(f"{len(rows)} both")
    speedups = [one.comparison.speedup.value for one in Findings(read_results(tmp_path)).main[0].modes[1:]
                if one.comparison]  # fmt: skip
    expected = [sum(STEP_SECONDS["eager"]) / sum(STEP_SECONDS[mode]) for mode in MODES[1:]]
    assert speedups == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_resumed_sweep_keeps_the_calls_that_were_chosen(
    tmp_path: Path, script: Script, small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept(tmp_path, script, small)
    plan = read_run(tmp_path).plan
    rows = (tmp_path / ROWS_FILE).read_text().splitlines(keepends=True)
    (tmp_path / ROWS_FILE).write_text("".join(rows[:-5]))
    monkeypatch.setitem(STEP_SECONDS, "eager", (0.02, 0.0005))  # another number would be chosen now
    with fake_service(script) as url:
        resumed(url, tmp_path)
    assert read_run(tmp_path).plan == plan
    assert measured(tmp_path) == every_request_of(plan)


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_mode_that_a_module_fails_in_is_left_out_alone(tmp_path: Path, small: Any) -> None:
    out = io.StringIO()
    why = "Unsupported: a branch on data\n\nfrom user code:\n  ranker.py:31"
    result = swept(tmp_path, Script(module=True, failed_mode="compiled", failed_because=why), small, out)
    assert failed(result) <= {CLIENT_CPU}
    assert result.run.plan.modes == ["eager", "inference_mode"]
    assert (
        "compiled is left out: it failed to become ready: Unsupported: a branch on data\n" in out.getvalue()
    )
    (parity,) = (one for one in sections(Findings(read_results(tmp_path)), []) if "Parity" in one.title)
    said = str(parity.tables[0].rows[-1][0])
    assert said == "compiled; failed, and was not measured: Unsupported: a branch on data"


@pytest.mark.parametrize(("module", "mode"), [(True, "eager"), (False, "compiled")])
@pytest.mark.usefixtures("impatient")
def test_a_failed_baseline_or_a_failed_mode_of_a_language_model_ends_the_sweep(
    tmp_path: Path, small: Any, module: bool, mode: str
) -> None:
    with pytest.raises(ModeFailed, match=f"mode {mode} failed"):
        swept(tmp_path, Script(module=module, failed_mode=mode), small)


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_an_answer_of_fewer_calls_than_asked_for_is_an_error(
    tmp_path: Path, small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = swept(tmp_path, Script(module=True, short=1), small)
    assert "no errors" in failed(result)
    assert {row.ok for row in read_rows(tmp_path)} == {False}


@pytest.mark.usefixtures("impatient")
def test_a_batch_size_that_is_not_served_is_refused_because_no_module_is_padded(
    tmp_path: Path, script: Script
) -> None:
    plan = make_plan("quick", 2, MODES, [1, 2])
    with pytest.raises(TargetError, match="leave 2 out, or start the service with --batch-sizes 1,2"):
        swept(tmp_path, script, plan)


@pytest.mark.usefixtures("impatient")
def test_a_service_that_measures_no_call_is_refused(
    tmp_path: Path, script: Script, small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.fake_service.phase", lambda *_: {"steps": 1, "wall_seconds": None})
    monkeypatch.setattr("tests.support.fake_service.timings_of_calls", lambda *_: {
        "forward": {"steps": 1, "wall_seconds": None},
    })  # fmt: skip
    with pytest.raises(TargetError, match="start it without LAUNCHBOUND_INSTRUMENTATION=off"):
        swept(tmp_path, script, small)


def test_rivals_are_not_compared_with_a_module(tmp_path: Path, script: Script) -> None:
    with fake_service(script) as url, pytest.raises(PeersError, match="rivals complete prompts"):
        run_peers(Target(url), "tiny", PeersPlan(), tmp_path, print)


# ---------------------------------------------------------------- the report


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_module(tmp_path_factory.mktemp("module"))
    make_report(folder)
    return folder


def page(folder: Path) -> str:
    return re.sub(r"<script>.*?</script>", "", (folder / "report.html").read_text(), flags=re.DOTALL)


def printed(folder: Path) -> str:
    console = Console(file=io.StringIO(), width=160)
    print_findings(Findings(read_results(folder)), console)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_modes_are_compared_by_their_calls_alone(made: Path) -> None:
    headline = make_report(made)
    assert headline["valid"] is True
    assert [(one["ship"], one["state"]) for one in headline["batches"]] == [("compiled", "faster")] * 3
    for one in headline["batches"]:
        # Latencies, with what is around the calls, would give 1.69 at batch 1.
        assert one["speedup"]["value"] == pytest.approx(0.7 / 0.4, rel=0.01)
        assert one["speedup"]["low"] < 0.7 / 0.4 < one["speedup"]["high"]
    summary = Findings(read_results(made)).main[0].of("compiled")
    assert summary.latency.value == pytest.approx(0.02 * 0.4, rel=0.03)
    assert summary.throughput.value == pytest.approx(1 / (0.02 * 0.4), rel=0.03)
    parts = [summary.parts[part] or 0.0 for part in ("dispatch", "kernel", "other")]
    assert sum(parts) == pytest.approx(summary.mean_seconds, rel=1e-9)
    assert parts[0] / summary.mean_seconds == pytest.approx(0.6)
    assert summary.outside_seconds is summary.parts["queue"] is None


def test_of_more_calls_in_a_request_the_same_is_reported(made: Path, tmp_path: Path) -> None:
    more = Findings(read_results(make_module(tmp_path, calls=32))).main
    for one, other in zip(Findings(read_results(made)).main, more, strict=True):
        for few, many in zip(one.summaries, other.summaries, strict=True):
            assert many.latency == few.latency
            assert many.main.step_dispatch_seconds == pytest.approx(few.main.step_dispatch_seconds)


def test_tables_for_programs_have_calls_and_samples_in_place_of_tokens(made: Path) -> None:
    for name in ("cells.csv", "summary.csv"):
        with (made / name).open() as file:
            rows = list(csv.DictReader(file))
        columns = set(rows[0])
        assert {"calls", "call_seconds", "samples_per_second"} <= columns
        assert not [one for one in columns if re.search(r"token|prompt|prefill|decode|latency_s", one)]
    shipped = next(row for row in rows if row["cell"] == "compiled b=4 c=1")
    assert float(shipped["call_seconds"]) == pytest.approx(0.02 * 4 * 0.4, rel=0.03)
    assert float(shipped["samples_per_second"]) == pytest.approx(4 / float(shipped["call_seconds"]), rel=0.01)
    assert {"payback_calls", "forward_index", "forward_dispatch_seconds_mean"} <= columns


def test_the_report_speaks_of_calls_and_says_what_the_time_is_of(made: Path) -> None:
    for text in (page(made), (made / "report.md").read_text(), printed(made)):
        assert "The time compared is that of one call of the module" in text
        assert "HTTP, queue and client are left out" in text
        assert "samples/s" in text
        assert "calls to pay back" in text
        assert not re.search(r"tokens/s|decode of|decode dispatch|prefill dispatch|prompts,", text)
    for text in (page(made), (made / "report.md").read_text()):
        for said in SAID:
            assert said in text, said
        for said in ("Roofline of decode", "greedy tokens", "first token</th>", "layers ×", "prefill chunk"):
            assert said not in text, said
    drawn = {plot.id: plot for plot in all_plots(Findings(read_results(made)))}
    assert drawn.keys() == {"speedup", "parts", "latency", "throughput", "index", "trade-off", "timeline"}
    assert drawn["index"].title == "Kernel share of a call"
    assert drawn["throughput"].title == "Samples per second against batch size"
    assert drawn["parts"].title == "Where a call's time goes"


SAID = (
    "dispatch of a call at batch 1", "x float32 [batch, 16]", "Calls per request 4",
    "What this report lacks", "there is no roofline", "is called on the same inputs",
)  # fmt: skip


def test_each_size_has_a_row_and_recompilations_are_shown(tmp_path: Path) -> None:
    sizes = {(batch, size): 4 for size in ("128", "512") for batch in (1, 4)}
    folder = make_results(tmp_path, plan=make_plan("quick", 1, MODES, [1, 4]).of_calls(sizes))
    edit_run(folder, lambda run: run.mode("compiled").update(recompiles=2, compile_seconds=[1.0, 2.0]))
    make_report(folder)
    found = Findings(read_results(folder))
    assert [one.group[:2] for one in found.main] == [(1, "size=128"), (4, "size=128")]
    assert [one.group[:2] for one in found.others] == [(1, "size=512"), (4, "size=512")]
    plots = {one.id: one.caption for one in all_plots(found)}
    assert {"speedup", "parts", "latency", "timeline"} <= plots.keys()
    for name, caption in plots.items():
        assert caption.startswith("Of size 128. ") == (name != "timeline")
    text = (folder / "report.md").read_text()
    for said in ("size 128, concurrency 1", "size 512, concurrency 1", "recompiled 2 times"):
        assert said in text, said
    with (folder / "summary.csv").open() as file:
        rows = {(row["cell"], row["size"]) for row in csv.DictReader(file)}
    assert ("compiled b=4 size=512 c=1", "512") in rows


def test_graph_breaks_stand_in_the_ladder_with_their_place_and_in_the_pytorch_to_write(
    made: Path, tmp_path: Path
) -> None:
    folder = make_module(tmp_path)
    where = "breaks the graph 2 times: ranker.py:31, ranker.py:40"

    def breaks(run: Any) -> None:
        run.mode("compiled").update(graph_breaks=2, reason=where)

    edit_run(folder, breaks)
    make_report(folder)
    (ladder,) = (one for one in sections(Findings(read_results(folder)), []) if one.title == "The ladder")
    assert [list(map(str, row)) for row in ladder.tables[1].rows] == [["compiled", "2", where]]
    for text in (page(folder), (folder / "report.md").read_text()):
        assert "graph breaks" in text
        assert where in text
        assert "torch.compile(lambda x: model(x), fullgraph=False, dynamic=False)" in text
    assert "graph breaks" not in page(made)
    assert "torch.compile(lambda x: model(x), fullgraph=True, dynamic=False)" in page(made)


def test_two_sweeps_of_a_module_are_compared_whatever_number_of_calls_they_chose(
    made: Path, tmp_path: Path
) -> None:
    after = make_module(tmp_path, calls=32, relative=CLEAR | {"compiled": 0.6}, seed=12)
    found = compare_builds(made, after)
    (one,) = (cell for cell in found.cells if cell.cell == "compiled b=1 c=1")
    assert one.ratio.value == pytest.approx(1.5, rel=0.02)
    assert len(found.cells) == 3 * len(CLEAR)
    assert "| time of a call |" in markdown(found)


def test_a_module_and_a_language_model_are_not_shown_side_by_side(made: Path, tmp_path: Path) -> None:
    with pytest.raises(RowsError, match="name runs of one kind"):
        read_entries([made, make_results(tmp_path, plan=make_plan("quick", 1, MODES, [1]))])


def test_runs_of_a_module_stand_side_by_side(made: Path, tmp_path: Path) -> None:
    from loadtests.compare.page import make_picture

    found = make_picture([made, make_module(tmp_path / "other", seed=12)], tmp_path / "page")
    assert [set(one) & {"call_seconds", "samples_per_second"} for one in found["groups"][0]["runs"]] == [
        {"call_seconds", "samples_per_second"}
    ] * 2
    assert "samples/s" in (tmp_path / "page" / "runs.md").read_text()
    assert "kernel share of eager's forward" in (tmp_path / "page" / "runs.md").read_text()


def test_on_a_gpu_a_call_is_dispatch_the_wait_for_the_device_and_what_lies_between(tmp_path: Path) -> None:
    folder = make_module(tmp_path, device="cuda")
    assert make_report(folder)["batches"][0]["speedup"]["value"] == pytest.approx(0.7 / 0.4, rel=0.01)
    summary = Findings(read_results(folder)).main[0].of("compiled")
    known = [summary.parts[part] or 0.0 for part in ("dispatch", "sync_wait", "other")]
    assert sum(known) == pytest.approx(summary.mean_seconds, rel=1e-9)
    assert summary.parts["kernel"] is None
    assert "sync wait" in page(folder)


# ---------------------------------------------------------------- the service's front itself


@pytest.mark.slow
def test_a_front_that_serves_a_module_is_swept_and_counts_what_was_sent(tmp_path: Path, small: Any) -> None:
    plan = msgspec.structs.replace(
        small, cells=tuple(cell for cell in small.cells if cell.batch_size == 1 and cell.mode != "compiled")
    )
    with running({"model": "ranker.py:build"}) as front:
        front.await_ready()
        result = run_sweep(front.url, plan, tmp_path, console=Console(file=io.StringIO()), exporter_port=0)
    assert failed(result) <= {CLIENT_CPU}, [gate.detail for gate in result.failed]
    (row, *_) = raw_rows(tmp_path)
    assert row["calls"] == row["forward"]["steps"] == 1000
    assert not {"prompt_tokens", "completion_tokens", "prefill", "decode"} & row.keys()
    assert {one.compared_seconds for one in read_rows(tmp_path)} == {row["forward"]["wall_seconds"] / 1000}
