"""What a machine must have for a test, and has not."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def without(reason: str) -> NoReturn:
    """Skip the test, or fail it where REQUIRE_ALL=1 is set: then nothing but GPU tests may be skipped."""
    if os.environ.get("REQUIRE_ALL") == "1":
        pytest.fail(reason)
    pytest.skip(reason)
