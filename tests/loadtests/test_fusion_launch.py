"""The 2×2 of fusion × launch: its ratios are known here, and where it cannot be drawn it says why."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from loadtests.plan.presets import make_plan
from loadtests.report.report_files import make_report
from loadtests.report.results import read_results
from loadtests.report.verdict import Findings
from loadtests.report.view import Buys, FusionLaunch, fusion_launch
from loadtests.run.run_file import SweepRun
from tests.support.fake_service import STEP_SECONDS
from tests.support.made_results import CLEAR, edit_run, make_results

RELATIVE = CLEAR | {"inference_mode": 0.8, "cuda-graph": 0.4, "compiled": 0.5, "reduce-overhead": 0.4}
MODES = list(RELATIVE)


def _graphs_were_replayed(run: SweepRun) -> None:
    for status in run.modes:
        status |= {"effective": status["mode"], "reason": None}


def made(folder: Path, modes: list[str] | None = None, device: str = "cuda", replayed: bool = True) -> Path:
    plan = make_plan("quick", 1, modes=modes or MODES, batch_sizes=[1, 16])
    make_results(folder, RELATIVE, plan=plan, scatter=0.002, device=device)
    if replayed:
        edit_run(folder, _graphs_were_replayed)
    return folder


@pytest.fixture(autouse=True)
def _served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STEP_SECONDS, "cuda-graph", (0.0004, 0.0005))


def drawn(folder: Path) -> FusionLaunch:
    return fusion_launch(Findings(read_results(folder)))


def ratio(buys: Buys) -> float:
    low, high = (float(end) for end in buys[1].split("–"))
    value = float(buys[0].removesuffix("×"))
    assert low <= value <= high
    return value


def test_each_factor_is_priced_without_and_with_the_other(tmp_path: Path) -> None:
    found = drawn(made(tmp_path))
    assert found.absent is None
    assert [design.batch for design in found.designs] == [1, 16]
    for design in found.designs:
        plain, fused = design.rows
        assert ratio(plain.replay_buys) == pytest.approx(2.0, rel=0.02)
        assert ratio(fused.replay_buys) == pytest.approx(1.25, rel=0.02)
        assert [ratio(buys) for buys in design.fusion_buys] == pytest.approx([1.6, 1.0, 2.0], rel=0.02)
    latencies = [(row.launched, row.replayed) for row in found.designs[0].rows]
    values = [float(text.removesuffix(" ms")) for pair in latencies for text in pair]
    assert values == pytest.approx([16, 8, 10, 8], rel=0.02)


def test_page_and_text_show_it_with_a_table_per_batch(tmp_path: Path) -> None:
    make_report(made(tmp_path))
    page, text = ((tmp_path / name).read_text() for name in ("report.html", "report.md"))
    assert "<h2>Fusion × launch</h2>" in page
    assert len(re.findall(r"<th>batch \d+: kernels</th>", page)) == 2
    assert re.search(
        r"^\| as they are \| [\d.]+ ms \| [\d.]+ ms \| [\d.]+× \([\d.]+–[\d.]+\) \|$", text, re.MULTILINE
    )
    assert "is not shown" not in page + text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"device": "cpu"}, "without CUDA no graph can be replayed"),
        (
            {"modes": [mode for mode in MODES if mode != "cuda-graph"]},
            "left out cuda-graph; sweep with --modes all",
        ),
        ({"replayed": False}, "reduce-overhead ran as compiled-cpp"),
    ],
)
def test_where_it_cannot_be_drawn_one_sentence_says_why(
    tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    folder = made(tmp_path, **change)  # type: ignore[arg-type]
    found = drawn(folder)
    assert found.designs == ()
    assert reason in (found.absent or "")
    make_report(folder)
    assert "<h2>Fusion × launch</h2>" not in (tmp_path / "report.html").read_text()
    assert reason in (tmp_path / "report.md").read_text()
