"""A sweep of the real service decides, and a service that is given its folder runs what it decided."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from loadtests.run.target import Target, await_modes
from service.front.launch import launched

PLAN = """
name = "small"
modes = ["eager", "inference_mode"]
batch_sizes = [1]
rounds = 8

[[closed_loop]]
new_tokens = 8
requests = 2
"""


@pytest.mark.long
def test_auto_runs_what_the_report_of_a_sweep_advises(tmp_path: Path, shared_code: dict[str, str]) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    swept = tmp_path / "swept"
    command = [sys.executable, "-m", "launchbound", "sweep", "--plan", "plan.toml", "--out", "swept"]
    environment = {**os.environ, **shared_code, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    advice = json.loads((swept / "advice.json").read_text())
    assert advice["valid"], done.stdout
    (decided,) = advice["batches"]
    options = ["--modes=eager,inference_mode", "--batch-sizes=1", f"--advice={swept}"]
    with (
        launched(options, tmp_path / "log", shared_code) as url,
        httpx.Client(base_url=url, timeout=60, trust_env=False) as client,
    ):
        await_modes(Target(url), ["eager", "inference_mode"], lambda _: None)
        answer = client.post("/v1/modes/auto/generate", json={"prompts": ["x"], "max_new_tokens": 2}).json()
        listed = client.get("/v1/modes").json()["auto"]
    assert answer["mode"]["requested"] == "auto"
    assert answer["mode"]["picked"] == answer["mode"]["effective"] == decided["mode"]
    assert answer["mode"]["reason"].startswith("advised by the sweep swept ")
    assert (listed["unused"], listed["batches"][0]["source"]) == (None, "sweep")
    assert "auto runs what the sweep swept" in (tmp_path / "log").read_text()
