"""Ray as a fleet uses it, in a few lines of Python: tests say what becomes of each task that is submitted."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from loadtests.fleet.run import LABEL, Swept


class RayError(Exception):
    """A node has died, or something else of Ray's own."""


class RayTaskError(RayError):
    """What the code on a node raised, in `cause`."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"a long traceback\n{cause}")
        self.cause = cause


def node(name: str, kind: str | None, *, cpus: float = 2, gpus: float = 0) -> dict[str, Any]:
    return {
        "NodeID": name * 8,
        "NodeManagerAddress": name,
        "Labels": {} if kind is None else {LABEL: kind},
        "Resources": {"CPU": cpus, "GPU": gpus},
        "Alive": True,
    }


def swept(folder: Path, exit_code: int = 0) -> Swept:
    """What a sweep brings that wrote `folder`."""
    with TemporaryDirectory() as temporary:
        packed = Path(shutil.make_archive(f"{temporary}/packed", "zip", folder)).read_bytes()
    return Swept(exit_code=exit_code, node="n", niceness=0, folder=packed)


class FakeRay:
    """`end` of the options of a task says what it brings or raises; None: it runs for ever."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(
        self, *nodes: dict[str, Any], end: Callable[[Sequence[str]], Swept | BaseException | None]
    ) -> None:
        self.alive = list(nodes)
        self.submitted: list[dict[str, Any]] = []
        self.cancelled: list[int] = []
        self.on_wait: Callable[[], None] = lambda: None
        self._end = end
        self._ends: dict[int, Swept | BaseException | None] = {}

    def nodes(self) -> list[dict[str, Any]]:
        return list(self.alive)

    def remote(self, function: Any) -> Any:
        return SimpleNamespace(
            options=lambda **options: SimpleNamespace(
                remote=lambda plan, arguments, code: self._submit(arguments, options)
            )
        )

    def _submit(self, arguments: Sequence[str], options: dict[str, Any]) -> int:
        number = len(self.submitted)
        self.submitted.append(options)
        self._ends[number] = self._end([options["label_selector"][LABEL], *arguments])
        return number

    def wait(self, refs: Sequence[int], num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        self.on_wait()
        return [ref for ref in refs if self._ends[ref] is not None][:num_returns], []

    def get(self, ref: int) -> Any:
        end = self._ends[ref]
        if isinstance(end, BaseException):
            raise end
        return end

    def cancel(self, ref: int, force: bool) -> None:
        assert force
        self.cancelled.append(ref)
