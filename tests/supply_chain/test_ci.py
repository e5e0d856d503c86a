"""What CI promises of the supply chain is what its files say."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()


def steps(job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = WORKFLOW["jobs"][job]["steps"]
    return found


def test_what_the_workflow_fetches_is_pinned_by_commit_or_release() -> None:
    used = [step["uses"] for job in WORKFLOW["jobs"] for step in steps(job) if "uses" in step]
    assert used
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", each) for each in used)
    assert all(re.search(r":\d+\.\d+\.\d+-", job["container"]) for job in WORKFLOW["jobs"].values())


def test_no_command_asks_two_indexes_at_a_time_and_the_second_gives_torch_alone() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    named = [".ci/run", *(f"{folder}/*" for folder in ("loadtests/peers", ".github/workflows"))]
    files = [dockerfile, MAKEFILE, *(p.read_text() for name in named for p in ROOT.glob(name) if p.is_file())]
    for text in files:
        assert not re.search(r"extra.index.url", text, re.IGNORECASE)
    for text in (dockerfile, MAKEFILE):
        (line,) = [line for line in text.splitlines() if "--index-url" in line]
        assert "--no-deps --index-url" in line
        assert "grep '^torch==' requirements.lock" in line
    assert WORKFLOW["env"]["TORCH_INDEX_URL"] in dockerfile
    assert len(re.findall(r"^torch==\S+$", (ROOT / "requirements.lock").read_text(), re.MULTILINE)) == 1


@pytest.mark.parametrize("url", ["", "https://index.example/cpu"])
def test_setup_takes_torch_from_its_own_index_only_where_one_is_named(url: str) -> None:
    command = ["make", "--dry-run", "--always-make", "setup", f"TORCH_INDEX_URL={url}"]
    said = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert said.count("--index-url") == bool(url)
    assert "--requirement requirements.lock" in said


def test_the_audit_is_asked_for_every_week_and_there_it_must_have_an_answer() -> None:
    assert WORKFLOW[True]["schedule"]  # YAML 1.1 reads the key `on` as true.
    assert "if" not in WORKFLOW["jobs"]["supply-chain"]
    commands = [step.get("run") for step in steps("supply-chain")]
    assert commands.index("make sbom") < commands.index("make audit")
    assert "supply_chain.audit --required" in MAKEFILE


def test_lint_audits_too_and_passes_where_there_is_no_network() -> None:
    lint = MAKEFILE.partition("\nlint:")[2].partition("\n\n")[0]
    assert lint.splitlines()[-1].endswith("-m supply_chain.audit")
    assert "make lint" in (ROOT / ".ci/run").read_text()


def test_all_that_development_asks_for_is_locked() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    locked = {
        line.partition("==")[0] for line in (ROOT / "requirements.lock").read_text().lower().splitlines()
    }
    locked = {re.sub(r"[-_.]+", "-", name) for name in locked}
    asked = {
        re.match(r"[\w-]+", each)[0].lower() for each in extras["dev"] if not each.startswith("launchbound")
    }
    assert asked <= locked
