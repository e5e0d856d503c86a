"""One front for all tests of a module that break something in it and put up with a new engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.serving import Front, running


@pytest.fixture(scope="module")
def _broken_front() -> Iterator[Front]:
    with running() as started:
        yield started


@pytest.fixture
def own_front(_broken_front: Front) -> Front:
    """One to be broken: what the tests before have done to it is undone, and `moved` counts from now on."""
    _broken_front.renew()
    return _broken_front
