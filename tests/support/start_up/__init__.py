"""Few samples of each step at warm-up, for tests that start engines and are not about shares."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest

from tests.support.start_up.sitecustomize import CONSTANTS

FEW_SAMPLES = {
    "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
}
"""The environment of a service whose processes take few samples."""


@contextmanager
def few_samples() -> Iterator[None]:
    """Within, an engine of this process takes few samples."""
    with pytest.MonkeyPatch.context() as patch:
        for module, constants in CONSTANTS.items():
            for name, value in constants.items():
                patch.setattr(import_module(module), name, value)
        yield
