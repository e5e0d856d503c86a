"""What the tests of several modules share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.serving import Front, running


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    """A front whose fake engine is a CPU with all modes ready, shared by a module's tests."""
    with running() as started:
        started.await_ready()
        yield started


@pytest.fixture(scope="module")
def cuda_front() -> Iterator[Front]:
    """The same as on a CUDA device."""
    with running(device="cuda") as started:
        started.await_ready()
        yield started


@pytest.fixture
def own_front() -> Iterator[Front]:
    """A front of one test's own, to be broken."""
    with running() as started:
        started.await_ready()
        yield started
