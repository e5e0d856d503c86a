"""The check that `make lint` runs finds nothing in the overlays, and finds what a cluster would refuse."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from deploy.kustomization import FOLDER, Resource, rendered

ROOT = Path(__file__).parents[2]
OF_CPUS = {one["kind"]: one for one in rendered(FOLDER / "overlays" / "cpu")}


@pytest.fixture(scope="module")
def check() -> ModuleType:
    """The command. What it imports takes a second, which every collection would cost."""
    from deploy import check

    return check


def test_the_check_that_lint_runs_finds_nothing(check: ModuleType) -> None:
    assert check.main() == 0
    assert ".venv/bin/python -m deploy.check" in (ROOT / "Makefile").read_text()


RUINED: list[tuple[str, tuple[str | int, ...], Any]] = [
    ("Deployment", ("spec", "template", "spec", "containers", 0, "imagePullPolicy"), ["Always"]),
    ("Deployment", ("spec", "template", "spec", "containers", 0, "tty?"), True),
    ("Service", ("spec", "ports", 0, "port"), "8000"),
    ("HorizontalPodAutoscaler", ("spec", "scaleTargetRef"), {"name": "launchbound"}),
    ("HorizontalPodAutoscaler", ("apiVersion",), "autoscaling/v2beta2"),
    ("ServiceMonitor", ("spec", "endpoints", 0, "intervall"), "5s"),
    ("ServiceMonitor", ("spec", "endpoints", 0, "interval"), "often"),
]


@pytest.mark.parametrize(("kind", "path", "value"), RUINED)
def test_the_check_finds_what_a_cluster_would_refuse(
    check: ModuleType, kind: str, path: tuple[str | int, ...], value: Any
) -> None:
    resource: Resource = deepcopy(OF_CPUS[kind])
    place: Any = resource
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    assert list(check.problems(resource))
