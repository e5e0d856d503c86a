"""The document holds in thousands of generated cases: valid ones are served, others refused as declared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.service import KEY, SEED, Fuzzed

ROOT = Path(__file__).parents[2]
CONFIGURATION = Path(__file__).parent / "schemathesis.toml"
LEAST_CASES = 2000
PHASES = {"examples", "coverage", "fuzzing", "stateful"}
LIMIT_SECONDS = 580
"""A minute or two on two quiet cores."""


def generated_cases(fuzzed: Fuzzed, folder: Path) -> tuple[dict[str, Any], str]:
    """Run schemathesis; returns its report, and what it printed."""
    report = folder / "report.json"
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIGURATION), "run"),
            *(f"{fuzzed.url}/openapi.json", f"--seed={SEED}", f"--header=Authorization: Bearer {KEY}"),
            *("--no-color", f"--report-json-path={report}"),
        ],
        cwd=ROOT,
        env={**os.environ, "SCHEMATHESIS_HOOKS": "tests.fuzz.hooks", "NO_PROXY": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    printed = ran.stdout + ran.stderr
    assert report.exists(), printed
    return json.loads(report.read_text()), printed


@pytest.mark.timeout(LIMIT_SECONDS + 20)
def test_no_generated_case_is_answered_otherwise_than_declared(fuzzed: Fuzzed, tmp_path: Path) -> None:
    report, printed = generated_cases(fuzzed, tmp_path)
    assert report["seed"] == SEED
    assert report["exit_code"] == 0, printed
    assert {name: phase["status"] for name, phase in report["phases"].items()} == dict.fromkeys(
        PHASES, "success"
    ), printed
    cases = report["test_cases"]
    assert (cases["with_failures"], cases["errored"]) == (0, 0), printed
    assert cases["generated"] >= LEAST_CASES
    assert report["operations"]["tested"] == report["operations"]["selected"]
