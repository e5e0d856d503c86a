"""Two services whose engines share cores are told so."""

from __future__ import annotations

import pytest

from service.front import machine
from service.front.machine import CoreClaims

CORES = [900, 901]
"""No machine's: other tests run services meanwhile."""


def test_a_second_engine_on_a_core_is_named_and_no_other() -> None:
    first = CoreClaims(CORES)
    try:
        assert first.warning is None
        second = CoreClaims([901, 902])
        try:
            assert second.shared == [901]
            assert "on core 901 too" in (second.warning or "")
            assert "LAUNCHBOUND_ENGINE_CPUS" in (second.warning or "")
        finally:
            second.close()
    finally:
        first.close()


def test_a_core_is_free_again_when_its_service_has_ended() -> None:
    CoreClaims(CORES).close()
    again = CoreClaims(CORES)
    assert again.shared == []
    again.close()


def test_where_claims_cannot_be_made_the_service_says_so_and_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forbidden:
        def bind(self, _: str) -> None:
            raise PermissionError(1, "not allowed here")

        def close(self) -> None:
            """Nothing is open."""

    monkeypatch.setattr(machine.socket, "socket", lambda *_: Forbidden())
    claims = CoreClaims(CORES)
    assert claims.shared == []
    assert "is not known: [Errno 1] not allowed here" in (claims.warning or "")
