"""The front as a process: no torch in it, cores of its own, and how late its event loop is."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from service.front import app, machine
from service.front.app import LAG_INTERVAL_SECONDS, LoopLag
from service.front.machine import CoreClaims
from service.statistics.choice import is_disturbed
from tests.cli.test_serve import await_ready, served
from tests.support.serving import BODY, Front, until

LIMIT_BYTES = 150_000_000


@pytest.mark.slow
def test_the_front_serves_without_torch_in_its_memory_and_under_its_limit() -> None:
    with served() as (process, url):
        await_ready(url)
        with httpx.Client(base_url=url, trust_env=False) as http:
            for mode in ("eager", "compiled"):
                assert http.post(f"/v1/modes/{mode}/generate", json=BODY).status_code == 200
            assert http.post("/v1/compare", json={**BODY, "repeats": 2}).status_code == 200
            assert len(http.get("/v1/probes").json()["probes"]) >= 10
            assert http.get("/metrics").status_code == http.get("/openapi.json").status_code == 200
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        mapped = set(re.findall(r"/\S+", maps))
        assert any("msgspec" in path for path in mapped)
        assert not [path for path in mapped if "torch" in path]
        assert psutil.Process(process.pid).memory_info().rss < LIMIT_BYTES


@pytest.mark.slow
def test_importing_the_front_imports_no_torch() -> None:
    code = "import service.front.app, sys; print([m for m in sys.modules if m.split('.')[0] == 'torch'])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )


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


def test_the_lag_is_the_time_beyond_the_interval_and_never_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100.0, 100.0 + LAG_INTERVAL_SECONDS + 0.3, 101.0, 101.0 + LAG_INTERVAL_SECONDS / 2, 102.0])
    monkeypatch.setattr(app, "monotonic", lambda: next(times))
    lags: list[float] = []

    async def read_twice() -> None:
        lag = LoopLag(lags.append)
        lag.start()
        while len(lags) < 2:
            await asyncio.sleep(0)
        lag.stop()

    asyncio.run(read_twice())
    assert lags == [pytest.approx(0.3), 0.0]


def test_readings_on_the_engines_own_core_disturb_no_step_of_up_to_10_ms() -> None:
    readings_per_second, steps_per_second = 1 / LAG_INTERVAL_SECONDS, 100
    assert not is_disturbed(readings_per_second, steps_per_second)


def test_a_running_front_exports_its_lag(front: Front) -> None:
    before = front.series()["event_loop_lag_seconds_count"]
    until(lambda: front.series()["event_loop_lag_seconds_count"] > before, "another reading")
