"""The front as a process: no torch in it, cores of its own, its event loop's lag, and how it is launched."""

from __future__ import annotations

import asyncio
import re
from itertools import chain, repeat
from pathlib import Path

import httpx
import psutil
import pytest

import service.machine
from service.front import app, machine
from service.front.app import report_lag
from service.front.machine import CoreClaims
from service.front.routes.state import AppState
from service.machine import engine_cpus, front_cpus, share_cpus
from tests.cli.test_serve import await_ready, served
from tests.support.serving import BODY

LIMIT_BYTES = 150_000_000


@pytest.mark.slow
def test_the_front_serves_without_torch_in_its_memory_and_under_its_limit(tmp_path: Path) -> None:
    with served(tmp_path / "log") as (process, url):
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


CORES = [900, 901]
"""No machine's: other tests run services meanwhile."""


def test_where_claims_cannot_be_made_the_service_says_so_and_names_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Forbidden:
        def bind(self, _: str) -> None:
            raise PermissionError(1, "not allowed here")

        def close(self) -> None: ...

    monkeypatch.setattr(machine.socket, "socket", lambda *_: Forbidden())
    claims = CoreClaims(CORES)
    assert (claims.held, claims.shared) == (False, [])
    assert "is not known: [Errno 1] not allowed here" in (claims.warning or "")


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
    again = CoreClaims(CORES)
    assert again.shared == []
    again.close()


def test_the_lag_is_the_time_beyond_the_interval_and_goes_on_where_it_cannot_be_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = chain([100.0, 100.31, 101.0, 101.005], repeat(102.0))
    monkeypatch.setattr(app, "monotonic", lambda: next(times))
    monkeypatch.setattr(app, "LAG_INTERVAL_SECONDS", 0.01)
    lags = list[float]()

    def record(lag: float) -> None:
        lags.append(lag)
        if len(lags) == 1:
            raise OSError(28, "the disk is full")

    async def record_twice() -> None:
        task = asyncio.create_task(report_lag(record))
        while len(lags) < 2:
            await asyncio.sleep(0.001)
        task.cancel()

    asyncio.run(asyncio.wait_for(record_twice(), 10.0))
    assert lags[:2] == [pytest.approx(0.3), 0.0]


# ---------------------------------------------------------------- placement

NEIGHBOURS = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3), 4: (4, 5), 5: (4, 5), 6: (6, 7), 7: (6, 7)}
APART = {cpu: (cpu % 4, cpu % 4 + 4) for cpu in range(8)}


@pytest.fixture
def one_thread_per_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.machine, "siblings", lambda cpu: (cpu,))


@pytest.mark.parametrize(
    ("topology", "cores", "front", "engine"),
    [
        (NEIGHBOURS, list(range(8)), [0, 1, 2, 3], [4, 5, 6, 7]),
        (APART, list(range(8)), [0, 1, 4, 5], [2, 3, 6, 7]),
        (NEIGHBOURS, [0, 1, 2, 3], [0, 1], [2, 3]),
        (NEIGHBOURS, [0, 1, 2], [0, 1], [2]),
        (NEIGHBOURS, [0, 1], [0], [1]),
    ],
)
def test_the_hardware_threads_of_a_core_are_on_the_same_side_where_there_is_another_core(
    monkeypatch: pytest.MonkeyPatch,
    topology: dict[int, tuple[int, ...]],
    cores: list[int],
    front: list[int],
    engine: list[int],
) -> None:
    monkeypatch.setattr(service.machine, "siblings", topology.__getitem__)
    assert front_cpus(None, None, cores) == front
    assert engine_cpus(None, cores) == engine
    assert share_cpus("lower", cores) == front


@pytest.mark.usefixtures("one_thread_per_core")
def test_cores_that_are_set_are_taken_and_where_none_is_left_they_are_shared() -> None:
    assert front_cpus(None, [0, 2], [0, 1, 2, 3]) == [1, 3]
    assert front_cpus([1], [1], [0, 1]) == [1]
    assert front_cpus(None, None, [3]) == [3]
    assert front_cpus(None, [0, 1], [0, 1]) == [0, 1]
    assert share_cpus("lower", [3]) == share_cpus("all", [3]) == [3]


@pytest.mark.usefixtures("one_thread_per_core")
@pytest.mark.parametrize("cores", [[0, 1], [0, 1, 2], [4, 5, 6, 7], list(range(16))])
def test_the_engines_of_two_services_share_no_core_where_the_second_has_the_lower_half(
    cores: list[int],
) -> None:
    lower = share_cpus("lower", cores)
    second = engine_cpus(None, lower)
    assert second
    assert not set(second) & set(engine_cpus(None, share_cpus("all", cores)))
    assert set(front_cpus(None, None, lower)) <= set(lower)
    assert len(cores) < 4 or not set(front_cpus(None, None, lower)) & set(second)


# ---------------------------------------------------------------- a launched service


def test_requests_that_ended_are_recorded_one_in_a_turn_of_the_event_loop_unless_all_are_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded: list[object] = []
    monkeypatch.setattr(AppState, "_observe", lambda _, timing: recorded.append(timing))
    state = AppState(*[None] * 9)  # type: ignore[arg-type]

    async def run() -> None:
        for timing in "abcd":
            state.observe_soon(timing)  # type: ignore[arg-type]
        state.observe_next()
        assert recorded == ["a"]
        await asyncio.sleep(0)
        assert recorded == ["a", "b"]
        state.observe_all()
        assert recorded == ["a", "b", "c", "d"]

    asyncio.run(run())
