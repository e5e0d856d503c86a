"""Replicas on a Ray of this machine: addresses, cores, streams, faults, updates, and what is left."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from urllib.parse import urlsplit

import httpx
import openai
import psutil
import pytest

from tests.replicas.running import START_SECONDS, Command, replicas
from tests.support.processes import descendants, gone, without
from tests.support.serving import BODY, FRESH, until

pytestmark = pytest.mark.ray

GENERATE = "/v1/modes/eager/generate"
PAUSE_SECONDS = 0.03
"""Between two requests during an update, which has the two cores to itself otherwise."""


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """Two replicas of a core each, on a Ray that begins and ends with this command."""
    if importlib.util.find_spec("ray") is None:
        without("Ray is not installed: pip install launchbound[ray]")
    if len(os.sched_getaffinity(0)) < 2:
        without("two replicas need two cores")
    with replicas(tmp_path_factory.mktemp("replicas") / "first", "2") as command:
        yield command


@pytest.fixture(scope="module")
def http(first: Command) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=first.url, timeout=60, trust_env=False) as client:
        yield client


def total(address: str, outcome: str) -> float:
    """Requests that the replica at `address` has counted as `outcome`."""
    page = httpx.get(f"http://{address}/metrics", headers=FRESH, trust_env=False).text
    lines = [line for line in page.splitlines() if line.startswith("launchbound_requests_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines if f'outcome="{outcome}"' in line)


def test_replicas_have_addresses_and_cores_of_their_own_and_share_the_requests(
    first: Command, http: httpx.Client
) -> None:
    addresses, cores = first.addresses(), first.cores()
    assert len(set(addresses.values())) == 2
    assert set(cores) == set(addresses)
    assert len({core for own in cores.values() for core in own}) == 2
    answered = Counter[str]()
    while len(answered) < 2:
        answer = http.post(GENERATE, json=BODY)
        assert answer.status_code == 200
        answered[answer.headers["x-launchbound-replica"]] += 1
        assert answered.total() < 500
    assert set(answered) == set(addresses)
    for address in addresses.values():
        assert httpx.get(f"http://{address}/health/ready", trust_env=False).status_code == 200
    assert sum(total(address, "ok") for address in addresses.values()) == answered.total()


def test_every_request_has_its_line_in_the_log_of_the_command(first: Command, http: httpx.Client) -> None:
    for number in range(10):
        http.post(GENERATE, json=BODY, headers={"X-Request-ID": f"logged-{number}"})
    until(
        lambda: len(set(re.findall(r"id logged-\d+", first.log))) == 10,
        "a line of each request",
    )


def test_events_arrive_by_the_proxy_while_the_next_are_not_made_yet(
    http: httpx.Client, tmp_path: Path
) -> None:
    body = {**BODY, "prompts": [f"!hold {tmp_path / 'go'}"], "stream": True}
    with http.stream("POST", GENERATE, json=body) as answer:
        lines = answer.iter_lines()
        assert next(lines) == "event: token"
        (tmp_path / "go").touch()
        assert "event: result" in list(lines)


def test_a_client_of_openai_streams_by_the_proxy(first: Command) -> None:
    with openai.OpenAI(
        base_url=f"{first.url}/v1", api_key="none", http_client=httpx.Client(trust_env=False)
    ) as client:
        model = client.models.list().data[0].id
        streamed = client.completions.create(model=model, prompt="x", max_tokens=4, stream=True)
        assert len([chunk for chunk in streamed if chunk.choices]) >= 4


def test_a_client_that_hangs_up_ends_its_request_at_the_replica(
    first: Command, http: httpx.Client, tmp_path: Path
) -> None:
    def cancelled() -> float:
        return sum(total(address, "cancelled") for address in first.addresses().values())

    before = cancelled()
    body = {**BODY, "prompts": [f"!hold {tmp_path / 'never'}"], "stream": True}
    with http.stream("POST", GENERATE, json=body) as answer:
        next(answer.iter_lines())
    until(lambda: cancelled() == before + 1, "the cancelled request")


def test_only_what_ran_on_an_engine_is_lost_when_it_is_killed(first: Command, http: httpx.Client) -> None:
    engines = [
        process
        for process in psutil.Process(first.process.pid).children(recursive=True)
        if _is_engine(process)
    ]
    assert len(engines) == 2
    engines[0].kill()
    answers = Counter(http.post(GENERATE, json=BODY).status_code for _ in range(20))
    assert answers[200] + answers[503] == 20
    # It may have been sent to the engine before the front heard that that has gone.
    assert answers[503] <= 1
    for address in first.addresses().values():
        until(
            lambda at=address: httpx.get(f"http://{at}/health/ready", trust_env=False).status_code == 200,
            "ready",
        )


def test_a_replica_whose_process_is_killed_is_replaced_and_the_targets_follow(
    first: Command, http: httpx.Client
) -> None:
    before = set(first.addresses())
    running = psutil.Process(first.process.pid).children(recursive=True)
    next(process for process in running if process.name().startswith("ray::ServeRepli")).kill()
    until(
        lambda: len(after := set(first.addresses())) == 2 and len(after - before) == 1,
        "another replica",
        START_SECONDS,
    )
    assert http.post(GENERATE, json=BODY).status_code == 200


def test_settings_that_no_replica_starts_with_end_the_command_with_the_words_of_the_engine(
    first: Command, tmp_path: Path
) -> None:
    """And the replicas that were to be replaced serve again."""
    words = "no model 'none': name a folder"
    with replicas(
        tmp_path / "refused",
        "1",
        address=first.cluster,
        serving=False,
        exit=2,
        says=f"launchbound engine: {words}",
    ) as refused:
        assert refused.process.wait(START_SECONDS) == 2
        assert words in refused.log.splitlines()[-1]
    until(lambda: "of this command serve again" in first.log, "the first's replicas", START_SECONDS)
    assert httpx.post(f"{first.url}{GENERATE}", json=BODY, trust_env=False).status_code == 200


def _is_engine(process: psutil.Process) -> bool:
    return any(part.endswith("fake_engine.py") for part in process.cmdline())


class Client:
    """Posts one request after the other until it is stopped; `statuses` of all answers."""

    def __init__(self, url: str) -> None:
        self.statuses = Counter[object]()
        self._stopped = Event()
        self._thread = Thread(target=self._run, args=(url,))
        self._thread.start()

    def _run(self, url: str) -> None:
        with httpx.Client(base_url=url, timeout=120, trust_env=False) as client:
            while not self._stopped.is_set():
                try:
                    self.statuses[client.post(GENERATE, json=BODY).status_code] += 1
                except httpx.HTTPError as error:
                    self.statuses[repr(error)] += 1
                self._stopped.wait(PAUSE_SECONDS)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def test_a_rolling_update_loses_no_request_and_leaves_nothing_behind(first: Command, tmp_path: Path) -> None:
    """The last one: it ends what the others use."""
    old, children = set(first.addresses()), descendants(first.process.pid)
    again = first.log.count("of this command serve again")
    client = Client(first.url)
    try:
        with replicas(tmp_path / "second", "2", "eager", first.cluster) as second:
            assert second.url == first.url
            new = set(second.addresses())
            assert len(new) == 2
            assert not new & old
            until(lambda: set(first.addresses()) == new, "the first command's targets")
            until(
                lambda: "another command replaces these replicas; this one stays" in first.log,
                "the first command's word",
            )
            document = httpx.get(f"{first.url}/v1/modes", trust_env=False).json()
            assert [mode["mode"] for mode in document["modes"]] == ["eager"]
            with replicas(tmp_path / "third", "1", "eager", first.cluster) as third:
                assert second.process.wait(START_SECONDS) == 0
                assert third.process.poll() is None
                assert set(third.addresses()).isdisjoint(new)
                client.stop()
                assert set(client.statuses) == {200}
                children += descendants(first.process.pid)
                third.process.send_signal(signal.SIGTERM)
                assert third.process.wait(START_SECONDS) == 0
                assert third.targets() == []
            until(
                lambda: first.log.count("of this command serve again") == again + 1,
                "the first's replicas",
                START_SECONDS,
            )
            assert len(first.targets()) == 2
            assert httpx.post(f"{first.url}{GENERATE}", json=BODY, trust_env=False).status_code == 200
            children += descendants(first.process.pid)
    finally:
        client.stop()
    assert first.process.poll() is None
    first.process.send_signal(signal.SIGTERM)
    assert first.process.wait(START_SECONDS) == 0
    until(lambda: all(gone(pid) for pid in children), "the end of what was started")
    assert first.targets() == []
    port = urlsplit(first.url).port
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/health/live", trust_env=False)
