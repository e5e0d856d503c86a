"""The house keeps its walls: imports go one way, and nothing of torch reaches the front."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

ALLOWED: dict[str, set[str]] = {
    "models": {"models"},
    "service.protocol": {"service.protocol", "service.front.errors"},
    "service.statistics.intervals": set(),
    "service.step": {"service.step", "service.protocol", "service.statistics.intervals", "models"},
    "service.engine": {"service.engine", "service.step", "service.protocol", "models"},
    "service.anatomy": {
        "service.anatomy",
        "service.step",
        "service.protocol",
        "service.statistics.intervals",
        "service.statistics.boundedness",
        "models",
    },
    "loadtests": {
        "loadtests",
        "service.statistics.intervals",
        "service.statistics.boundedness",
        "dashboards.theme",
    },
    "dashboards": {"dashboards"},
}
"""What the modules of a room may import of ours."""

TORCHLESS = (
    "service.front.api",
    "service.protocol",
    "service.front.app",
    "service.front.metrics.recorder",
    "service.front.schemas.requests",
    "service.front.schemas.answers",
    "service.front.schemas.openai",
    "loadtests",
)


def modules() -> dict[str, set[str]]:
    """Every module of ours with the modules that it imports, wherever in the file that stands."""
    found = {}
    for folder in ("service", "models", "loadtests", "dashboards"):
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
            names.append(node.module)
    return names


def within(name: str, room: str) -> bool:
    return name == room or name.startswith(room + ".")


MODULES = modules()
OURS = ("service", "models", "loadtests", "dashboards")


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_imports_only_from_rooms_below_it(room: str) -> None:
    members = {name: imported for name, imported in MODULES.items() if within(name, room)}
    assert members
    for name, imported in members.items():
        ours = {other for other in imported if any(within(other, top) for top in OURS)}
        astray = {other for other in ours if not any(within(other, allowed) for allowed in ALLOWED[room])}
        assert not astray, f"{name} imports {', '.join(sorted(astray))}"


def test_no_module_of_the_front_reaches_torch() -> None:
    for start in (name for name in MODULES if any(within(name, room) for room in TORCHLESS)):
        seen, waiting = {start}, [start]
        while waiting:
            for other in MODULES.get(waiting.pop(), set()) - seen:
                assert not within(other, "torch"), f"{start} reaches torch by way of {sorted(seen)}"
                seen.add(other)
                waiting.append(other)


def test_no_imports_go_in_a_circle() -> None:
    finished: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " → ".join([*path, name])
        if name in MODULES and name not in finished:
            for other in MODULES[name]:
                visit(other, (*path, name))
            finished.add(name)

    for name in MODULES:
        visit(name, ())
