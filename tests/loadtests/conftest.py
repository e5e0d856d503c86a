"""What several tests of sweeps share."""

from __future__ import annotations

import pytest

from loadtests.run import target


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll often, and do not wait long for what a stand-in counts."""
    monkeypatch.setattr(target, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(target, "COUNTED_WITHIN_SECONDS", 0.2)
