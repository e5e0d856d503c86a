"""What CI and the image fetch is pinned, and the bill of materials is of what the image carries."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from launchbound import app

ROOT = Path(__file__).parents[1]
WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()
LOCK = (ROOT / "requirements.lock").read_text()


def test_what_the_workflow_fetches_is_pinned_by_commit_or_release() -> None:
    steps = [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]
    used = [step["uses"] for step in steps if "uses" in step]
    assert used
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", each) for each in used)
    assert all(re.search(r":\d+\.\d+\.\d+-", job["container"]) for job in WORKFLOW["jobs"].values())


def test_no_command_asks_two_indexes_at_a_time_and_the_second_gives_torch_alone() -> None:
    named = [".ci/run", *(f"{folder}/*" for folder in ("loadtests/peers", ".github/workflows"))]
    others = [path.read_text() for name in named for path in ROOT.glob(name) if path.is_file()]
    assert not [text for text in (DOCKERFILE, MAKEFILE, *others) if re.search(r"(?i)extra.index.url", text)]
    for text in (DOCKERFILE, MAKEFILE):
        (line,) = [line for line in text.splitlines() if "--index-url" in line]
        assert "--no-deps --index-url" in line
        assert "grep '^torch==' requirements.lock" in line
    assert WORKFLOW["env"]["TORCH_INDEX_URL"] in DOCKERFILE
    assert len(re.findall(r"^torch==\S+$", LOCK, re.MULTILINE)) == 1


@pytest.mark.parametrize("url", ["", "https://index.example/cpu"])
def test_setup_takes_torch_from_its_own_index_only_where_one_is_named(url: str) -> None:
    command = ["make", "--dry-run", "--always-make", "setup", f"TORCH_INDEX_URL={url}"]
    said = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert said.count("--index-url") == bool(url)
    assert "--requirement requirements.lock" in said


def test_all_that_development_asks_for_is_locked() -> None:
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["dev"]
    locked = {re.sub(r"[-_.]+", "-", line.partition("==")[0]) for line in LOCK.lower().splitlines()}
    assert {name.lower() for name in asked if not name.startswith("launchbound")} <= locked


def test_the_image_carries_the_bill_and_not_the_tool_that_made_it() -> None:
    *stages, last = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)
    (making,) = (stage for stage in stages if "cyclonedx-py" in stage)
    assert "/opt/venv/bin/python" in making
    assert "COPY --from=sbom /launchbound.cdx.json" in last
    assert "cyclonedx-py" not in last


@pytest.mark.parametrize(
    ("said", "code"),
    [("Found 1 known vulnerability in 1 package", 2), ("ConnectionError: Failed to resolve", 0)],
)
def test_lint_fails_for_a_known_vulnerability_and_not_for_a_service_out_of_reach(
    said: str, code: int
) -> None:
    audit = f"sh -c 'echo {said}; exit 1'"
    command = ["make", "--silent", "audit-if-reached", f"AUDIT={audit}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == code
    assert said in done.stdout


def test_the_program_says_the_version_of_the_project() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    found = CliRunner().invoke(app, ["--version"])
    assert (found.exit_code, found.output) == (0, f"launchbound {version}\n")
