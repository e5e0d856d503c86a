"""A command whose own service ends tells why, in the words of the service, not that nothing answers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
REASON = "no folder nosuch: name one of tiny, small, base or an existing folder"

PLAN = """\
name = "own"
dtypes = ["float32", "bfloat16"]
modes = ["eager"]
batch_sizes = [1]
rounds = 1
[[closed_loop]]
"""

SERVICE = """
from service.front import app
from service.front.settings import Settings
app.ENGINE_COMMAND = {engine!r}
raise SystemExit(app.serve(Settings(port=0, modes=["eager"], batch_sizes=[1])))
"""
"""Stands for the command line where a command starts its service: its engine refuses the model."""


def ended(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """The command, whose service's engine lives as long as one that looks for a model that is not there."""
    refusing = ["bash", "-c", f"sleep 1; echo 'launchbound: {REASON}' >&2; exit 2"]
    (folder / "launchbound.py").write_text(SERVICE.format(engine=refusing))
    (folder / "plan.toml").write_text(PLAN)
    own = {
        "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
        "LAUNCHBOUND_CACHE_FOLDER": str(folder / "cache"),
    }
    return subprocess.run(
        [sys.executable, str(ROOT / "launchbound.py"), *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, **own},
    )


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["sweep", "--modes=eager", "--batch-sizes=1", "--out=results"], 2),
        (["sweep", "--plan=plan.toml", "--out=results"], 1),
        (["generate", "x"], 2),
        (["peers", "--modes=eager", "--batch-sizes=1", "--out=results"], 2),
    ],
    ids=["sweep", "series", "generate", "peers"],
)
def test_a_model_that_cannot_be_loaded_is_named(arguments: list[str], code: int, tmp_path: Path) -> None:
    done = ended(arguments, tmp_path)
    assert f"the service ended: {REASON}" in done.stderr + done.stdout
    assert "nothing answers" not in done.stderr + done.stdout
    assert done.returncode == code


def test_a_selftest_has_it_as_a_failed_row(tmp_path: Path) -> None:
    done = ended(["selftest", "--only=parts", "--modes=eager", "--out=results"], tmp_path)
    assert done.returncode == 1, done.stderr
    assert f"the service ended: {REASON}" in (tmp_path / "results" / "selftest.json").read_text()
