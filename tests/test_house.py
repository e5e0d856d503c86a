"""Imports go one way, between files and between folders, and nothing of torch reaches the front."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

LEAVES = {
    "service.forward_records",
    "service.start_records",
    "service.modes",
    "service.machine",
    "service.frames",
    "service.nvml",
    "service.parent_death",
    "service.study_names",
}
"""They import nothing of ours."""

SHARED = {*LEAVES, "service.records", "service.statistics", "service.workloads"}
"""The front, the engine and the load tests share them."""

OF_LOADTESTS = {
    "service.machine",
    "service.modes",
    "service.nvml",
    "service.parent_death",
    "service.records",
    "service.statistics",
    "service.workloads",
}

ALLOWED: dict[str, set[str]] = {
    **{name: set[str]() for name in sorted(LEAVES)},
    "service.records": {"service.forward_records", "service.start_records"},
    "service.statistics": {"service.records"},
    "service.workloads": {"service.records"},
    "service.front": {"models.naming", *SHARED},
    "service.ray_cluster": set(),
    "service.replicas": {"service.front", "service.ray_cluster", *SHARED},
    "service.step": {"models", *SHARED},
    "service.engine": {"service.measure", "service.step", "models", *SHARED},
    "service.measure": {"service.step", "models", *SHARED},
    "service.anatomy": {"service.measure", "service.step", "models", *SHARED},
    "service.proof": {
        "service.anatomy.show",
        "service.measure",
        "service.step",
        "service.engine",
        "service.front.settings",
        "service.front.launch",
        "service.front.machine",
        "service.front.metrics",
        "service.front.request_timing",
        "models",
        "loadtests",
        *SHARED,
    },
    "service.cli": {
        "service.anatomy",
        "service.engine",
        "service.front",
        "service.measure",
        "service.ray_cluster",
        "service.replicas",
        "service.proof",
        "service.step",
        "models.export",
        "models.naming",
        "loadtests",
        "dashboards",
        *SHARED,
    },
    "models": set(),
    "models.training": {"models"},
    "loadtests.plan": OF_LOADTESTS,
    "loadtests.run": {"loadtests.plan", *OF_LOADTESTS},
    "loadtests.report": {"loadtests.plan", "loadtests.run", "dashboards.theme", *OF_LOADTESTS},
    "loadtests.peers": {"loadtests.plan", "loadtests.run", *OF_LOADTESTS},
    "loadtests.peers.rivals": {
        "service.parent_death",
        "service.engine.generation",
        "service.modes",
        "service.step",
        "models",
    },
    "loadtests.compare": {
        "loadtests.fleet",
        "loadtests.plan",
        "loadtests.report",
        "loadtests.run",
        "dashboards.theme",
        *OF_LOADTESTS,
    },
    "loadtests.fleet": {"loadtests.plan", "loadtests.run", "models.config", *OF_LOADTESTS},
    "loadtests.startup": {"loadtests.report", "loadtests.run", "service.statistics"},
    "loadtests.locustfile": {"loadtests.plan", "loadtests.run", "service.modes"},
    "dashboards": set(),
}
"""What the modules of a folder may import of ours, besides the folder itself."""

TOPS = ("service", "models", "loadtests", "dashboards")

FOREIGN = "loadtests.peers.rivals"
"""Run by the rivals' own interpreters, as processes; what they import is not of this process."""

TORCHLESS = (
    *SHARED,
    "models.naming",
    "service.front",
    "service.ray_cluster",
    "service.replicas",
    "loadtests",
    "dashboards",
)


@cache
def modules() -> dict[str, set[str]]:
    """Every module of ours with the modules that it imports, wherever in the file that stands."""
    found = {}
    for folder in TOPS:
        for path in (ROOT / folder).rglob("*.py"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            found[name] = set(imports(ast.parse(path.read_text())))
    return found


def imports(tree: ast.AST) -> list[str]:
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names


def within(name: str, folder: str) -> bool:
    return name == folder or name.startswith(folder + ".")


def folder_of(name: str) -> str:
    """The entry of ALLOWED that a module belongs to; '' where there is none."""
    return max((folder for folder in ALLOWED if within(name, folder)), key=len, default="")


def imports_of_ours(name: str) -> set[str]:
    """Modules of ours that `name` imports, `from package import module` resolved."""
    return {other for other in modules()[name] if any(within(other, top) for top in TOPS)}


def test_every_module_belongs_to_a_folder_with_a_rule() -> None:
    # `service` and `loadtests` themselves hold nothing but their docstring.
    homeless = [name for name in modules() if not folder_of(name) and name not in TOPS]
    assert not homeless


@pytest.mark.parametrize("folder", ALLOWED)
def test_a_folder_imports_only_from_folders_below_it(folder: str) -> None:
    members = [name for name in modules() if folder_of(name) == folder]
    assert members
    for name in members:
        allowed = {folder, *ALLOWED[folder]}
        astray = {o for o in imports_of_ours(name) if not any(within(o, place) for place in allowed)}
        assert not astray, f"{name} imports {', '.join(sorted(astray))}"


def test_no_module_of_the_front_reaches_torch() -> None:
    ours = (name for name in modules() if not within(name, FOREIGN))
    for start in (name for name in ours if any(within(name, folder) for folder in TORCHLESS)):
        seen, waiting = {start}, [start]
        while waiting:
            for other in modules().get(waiting.pop(), set()) - seen:
                assert not within(other, "torch"), f"{start} reaches torch by way of {sorted(seen)}"
                seen.add(other)
                waiting.append(other)


def test_the_processes_of_rivals_are_imported_by_nothing_else() -> None:
    outsiders = [name for name in modules() if not within(name, FOREIGN)]
    assert not [name for name in outsiders if any(within(other, FOREIGN) for other in modules()[name])]


def test_one_file_of_the_load_tests_imports_ray() -> None:
    of_ray = {name for name in modules() if any(within(other, "ray") for other in modules()[name])}
    assert {name for name in of_ray if within(name, "loadtests")} == {"loadtests.fleet.run"}


def circle(graph: dict[str, set[str]]) -> list[str] | None:
    """The nodes of one circle in `graph`, first and last the same; None where there is none."""
    finished: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> list[str] | None:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in finished:
            return None
        for other in sorted(graph.get(name, set())):
            if found := visit(other, (*path, name)):
                return found
        finished.add(name)
        return None

    return next((found for name in sorted(graph) if (found := visit(name, ()))), None)


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circle(modules()) is None
