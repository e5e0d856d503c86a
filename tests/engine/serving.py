"""An engine served in process, without a front."""

from __future__ import annotations

from pathlib import Path

import msgspec

from service.engine.inbox import LocalInbox
from service.engine.loop import Engine
from service.records import EngineSettings, Job
from tests.support.small_models import write_few_layers

PROMPT = "def mean(values):\n"
MODE_NAMES = ["eager", "inference_mode"]


def settings(folder: Path, **changes: object) -> EngineSettings:
    """Of `tiny` with few layers, which is written into `folder` beside the cache."""
    model = folder / "tiny"
    if not model.exists():
        model.mkdir(parents=True)
        write_few_layers(model)
    base = EngineSettings(
        address="",
        model=str(model),
        modes=MODE_NAMES,
        batch_sizes=[1, 2],
        cache_folder=str(folder),
        cpus=None,
        threads=1,
    )
    return msgspec.structs.replace(base, **changes)


def serve(folder: Path, jobs: list[Job], **changes: object) -> LocalInbox:
    inbox = LocalInbox(jobs)
    Engine(settings(folder, **changes), inbox).run()
    return inbox
