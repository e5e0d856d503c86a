"""The faults of `make chaos` that take seconds, in short and without a word on time, on one service."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.chaos.client_faults import among, beside_silent
from tests.chaos.disk_faults import MEGABYTE, SmallDisk, small_disk, traces_amiss
from tests.chaos.victim import PATIENCE_SECONDS, NotPossible, Setup, Victim, victim
from tests.support.processes import without
from tests.support.serving import until

pytestmark = [pytest.mark.slow, pytest.mark.end_to_end]

QUEUE = 16
CONNECTIONS = 64
CONNECTION_SECONDS = dict.fromkeys(("HEAD", "BODY", "UNREAD"), "2")
"""Of a busy machine a client that means well may need one between connecting and sending."""

SETTINGS = {
    "LAUNCHBOUND_MAX_QUEUE": str(QUEUE),
    "LAUNCHBOUND_MAX_CONNECTIONS": str(CONNECTIONS),
    **{f"LAUNCHBOUND_{what}_TIMEOUT_SECONDS": seconds for what, seconds in CONNECTION_SECONDS.items()},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chaos")


@pytest.fixture(scope="module")
def disk(folder: Path) -> Iterator[SmallDisk | str]:
    """The disk of the service's cache folder, or why there is none."""
    with ExitStack() as stack:
        try:
            yield stack.enter_context(small_disk(folder / "cache", 64 * MEGABYTE))
        except NotPossible as lacking:
            yield str(lacking)


@pytest.fixture(scope="module")
def service(folder: Path, disk: SmallDisk | str) -> Iterator[Victim]:
    """One service for all, where that is allowed with a disk of its own."""
    wrap = disk.within if isinstance(disk, SmallDisk) else list
    setup = Setup(environment=SETTINGS, wrap=wrap)
    with victim(folder, setup) as started:
        started.await_warm()
        yield started


def test_all_that_a_terminated_service_has_accepted_is_answered(tmp_path: Path) -> None:
    patient = Setup(modes="eager", environment={"LAUNCHBOUND_DRAIN_SECONDS": "300"})
    with victim(tmp_path, patient) as own, ThreadPoolExecutor(24) as pool:
        own.await_ready()
        body = {"max_new_tokens": 60, "ignore_eos": True}
        asked = [pool.submit(own.generate, **body) for _ in range(24)]
        until(lambda: own.in_progress() == 24, "24 accepted requests")
        own.process.send_signal(signal.SIGTERM)
        assert [one.result().status_code for one in asked] == [200] * 24
        assert own.process.wait(PATIENCE_SECONDS) == 0


def test_a_full_disk_costs_traces_and_no_answer(service: Victim, disk: SmallDisk | str) -> None:
    if isinstance(disk, str):
        without(disk)
    assert traces_amiss(service, disk) == ""


def test_honest_requests_go_on_beside_clients_that_are_slow_silent_half_open_or_gone(service: Victim) -> None:
    found = among(service, each=4, seconds=6.0, alone=8)
    assert found.as_must, found.words


def test_probes_go_on_beside_more_silent_clients_than_there_are_places(service: Victim) -> None:
    found = beside_silent(service, count=4 * CONNECTIONS, seconds=3.0)
    assert found.as_must, found.words
