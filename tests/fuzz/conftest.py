"""One service for all generated requests of a worker, which is looked after between the tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.service import Fuzzed, started


@pytest.fixture(scope="session")
def fuzzed(
    tmp_path_factory: pytest.TempPathFactory, short_tiny: Path, common_cache: Path
) -> Iterator[Fuzzed]:
    """A service that was fresh before the first test."""
    with started(tmp_path_factory.mktemp("fuzzed"), short_tiny, common_cache) as service:
        yield service
        service.check_log()


@pytest.fixture(autouse=True)
def _unharmed(fuzzed: Fuzzed) -> Iterator[None]:
    """After every test the engine is the same one, and answers as at first."""
    yield
    fuzzed.check_unharmed()
