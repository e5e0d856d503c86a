"""What the tests of sweeps that end early share."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from loadtests.run import sweep
from loadtests.run.events import GeneratorEvent, RequestEnded, run_load_generator
from loadtests.run.sweep import run_sweep
from tests.support.fake_service import Script, fake_service
from tests.support.killed_sweeps import PLAN


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    """A service, and the folder of a sweep of it that Ctrl-C stopped in round 3."""

    def interrupted(*arguments: Any) -> Iterator[GeneratorEvent | None]:
        for event in run_load_generator(*arguments):
            yield event
            if isinstance(event, RequestEnded) and event.round == 3:
                raise KeyboardInterrupt

    with fake_service(Script()) as url:
        with monkeypatch.context() as patched:
            patched.setattr(sweep, "run_load_generator", interrupted)
            run_sweep(url, PLAN, tmp_path, console=Console(file=io.StringIO()), exporter_port=0)
        yield url, tmp_path
