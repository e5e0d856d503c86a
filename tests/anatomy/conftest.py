"""A bench that the tests of several studies share, and what a terminal shows of a finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from service.measure.cases import Bench
from tests.support.small_models import small_bench


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with small_bench() as shared:
        yield shared


def printed(show: Callable[[Any, Console], None], finding: object, width: int = 200) -> str:
    """The text that `show` prints of `finding`."""
    text = StringIO()
    show(finding, Console(file=text, width=width))
    return text.getvalue()
