"""A module of the user's own, whole: served over HTTP, and measured by `launchbound run`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from service.front.launch import launched
from tests.support.serving import FRESH, until
from tests.support.whole_service import START_SECONDS, statuses

ROOT = Path(__file__).parents[2]
RECOMMENDER = f"{ROOT}/examples/recommender.py:build"
EARLY_EXIT = f"{ROOT}/examples/early_exit.py:build"


def test_a_served_module_answers_and_its_parts_add_up(tmp_path: Path) -> None:
    options = [f"--model={RECOMMENDER}", "--batch-sizes=2", "--modes=eager,compiled"]
    environment = {"LAUNCHBOUND_CACHE_FOLDER": str(tmp_path / "cache")}
    with (
        launched(options, tmp_path / "log", environment) as url,
        httpx.Client(base_url=url, headers=FRESH, timeout=START_SECONDS, trust_env=False) as http,
    ):
        until(lambda: http.get("/health/ready").status_code == 200, "the modes", START_SECONDS)
        for name, status in statuses(http).items():
            assert status["parity"]["passed"], name
        work = {"batch_size": 2, "seed": 3, "calls": 7, "outputs": True}
        answers = {
            mode: http.post(f"/v1/modes/{mode}/forward", json=work).json() for mode in ("eager", "compiled")
        }
        for answer in answers.values():
            timings = answer["timings"]
            parts = [timings[f"{part}_seconds"] for part in ("queue", "dispatch", "kernel", "other")]
            assert sum(parts) == pytest.approx(timings["total_seconds"])
            assert timings["forward"]["steps"] == 7
            assert timings["forward"]["samples_of"] in ("request", "traffic")
            assert answer["outputs"]["shape"][0] == 2
        assert answers["compiled"]["mode"]["effective"] == "compiled"
        found, expected = (answers[mode]["outputs"]["data"] for mode in ("compiled", "eager"))
        assert found == pytest.approx(expected, abs=1e-5)
        refused = http.post("/v1/modes/eager/generate", json={"prompts": ["a"]})
        assert (refused.status_code, refused.json()["error"]["type"]) == (409, "wrong_workload")
        metrics = http.get("/metrics").text
        assert 'phase="forward"' in metrics
        assert 'phase="decode"' not in metrics


def test_a_module_that_breaks_the_graph_is_measured_and_the_answer_is_a_program(tmp_path: Path) -> None:
    folder, program = tmp_path / "run", tmp_path / "best.py"
    command = [
        *(sys.executable, "-m", "launchbound", "run", EARLY_EXIT, "--modes", "eager,inference_mode,compiled"),
        *("--batch-sizes", "2", "--out", str(folder), "--export", str(program), "--json"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode in (0, 1), done.stderr  # 1: a gate of a busy machine
    run = json.loads((folder / "run.json").read_text())
    assert run["engine"]["workload"] == "forward"
    compiled = next(mode for mode in run["modes"] if mode["mode"] == "compiled")
    assert compiled["graph_breaks"] > 0
    assert "early_exit.py:" in compiled["reason"]
    report = (folder / "report.md").read_text()
    assert "early_exit.py:" in report
    assert "tokens" not in report.split("## ")[0]
    if json.loads(done.stdout)["valid"]:
        shown = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=300)
        assert shown.returncode == 0, shown.stderr
