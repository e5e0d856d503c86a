"""Ray as a fleet uses it, in a few lines of Python: tests say what is told of each task that is submitted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from loadtests.fleet.node import Brought, packed


class RayError(Exception):
    """A node has died, or something else of Ray's own."""


class RayTaskError(RayError):
    """What the code on a node raised, in `cause`."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"a long traceback\n{cause}")
        self.cause = cause


Told = str | Brought | BaseException
"""The address of a node where the task begins; its end, or no end, is last."""


def node(name: str, kind: str | None, *, cpus: float = 2, gpus: float = 0) -> dict[str, Any]:
    return {
        "NodeID": name * 8,
        "NodeManagerAddress": name,
        "Labels": {} if kind is None else {"launchbound-machine": kind},
        "Resources": {"CPU": cpus, "GPU": gpus},
        "Alive": True,
    }


def brought(folder: Path, exit_code: int = 0, seconds: float = 60.0) -> Brought:
    """What a sweep brings that wrote `folder`."""
    return Brought(exit_code=exit_code, seconds=seconds, folder=packed(folder))


class FakeRay:
    """`script` of a task's name, and of how many were submitted before, says what is told of it."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self, *nodes: dict[str, Any], script: Callable[[str, int], Sequence[Told]]) -> None:
        self.alive = list(nodes)
        self.submitted: list[tuple[str, dict[str, Any]]] = []
        self.cancelled: list[int] = []
        self.on_wait: Callable[[], None] = lambda: None
        self._script = script
        self._told: dict[int, list[Told]] = {}
        self._starts: Any = None

    def nodes(self) -> list[dict[str, Any]]:
        return list(self.alive)

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "driver")

    def remote(self, function: Any = None, **_: Any) -> Any:
        if function is None:
            return self._actor
        return SimpleNamespace(
            options=lambda **options: SimpleNamespace(remote=lambda *given: self._submit(given[0], options))
        )

    def _actor(self, kind: Any) -> Any:
        def made() -> Any:
            self._starts = kind()
            return SimpleNamespace(take=SimpleNamespace(remote=lambda: self._starts.take))

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=made))

    def _submit(self, task: str, options: dict[str, Any]) -> int:
        number = len(self.submitted)
        self.submitted.append((task, options))
        self._told[number] = list(self._script(task, number))
        return number

    def wait(self, refs: Sequence[int], num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        self.on_wait()
        for ref in refs:
            told = self._told[ref]
            task = self.submitted[ref][0]
            if told and isinstance(told[0], str):
                address = told.pop(0)
                self._starts.begins(task, address * 8, address, 0)
            elif told and isinstance(told[0], KeyboardInterrupt):
                raise told.pop(0)
            elif told:
                return [ref], []
        return [], list(refs)

    def get(self, ref: Any) -> Any:
        if callable(ref):
            return ref()
        end = self._told.pop(ref)[0]
        if isinstance(end, BaseException):
            raise end
        return end

    def cancel(self, ref: int, force: bool) -> None:
        assert force
        self.cancelled.append(ref)
