"""Replicas on a Ray of this machine: addresses, cores, streams, faults, updates, and what is left."""

from __future__ import annotations

import importlib.util
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from service.ray_cluster import local_ray
from tests.support.processes import descendants, gone, without
from tests.support.serving import BODY, FRESH, fake_engine_command, until

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]
START_SECONDS = 400.0
TOKEN = secrets.token_hex(32)
"""Without it Ray keeps one in the home of whoever runs the tests."""

GENERATE = "/v1/modes/eager/generate"
PAUSE_SECONDS = 0.03
"""Between two requests during an update, which has the two cores to itself otherwise."""

SERVE = """
import sys
from service.cli.serve import serve_on_ray
from service.front.settings import Settings
address, count, modes, *engine = sys.argv[1:]
settings = Settings(
    port=0, modes=modes, batch_sizes=[1], drain_seconds=1.0, request_timeout_seconds=30.0, log_requests="all"
)
sys.exit(serve_on_ray(settings, count, 1, address or None, engine))
"""


@dataclass(frozen=True)
class Command:
    """A running command; its standard output and error are in files."""

    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def url(self) -> str:
        found = re.search(r"^launchbound: serving on (\S+)$", (self.folder / "out").read_text(), re.MULTILINE)
        assert found, self.log
        return found[1]

    @property
    def log(self) -> str:
        """What it wrote on standard error, with what its replicas wrote there."""
        return (self.folder / "err").read_text(errors="replace")

    def addresses(self) -> dict[str, str]:
        """Name → host:port of each replica that still listens, as they said."""
        return {name: at for name, (at, _) in self._said().items() if listens(at)}

    def cores(self) -> dict[str, str]:
        """Name → cores of each replica, as it said."""
        return {name: cores for name, (_, cores) in self._said().items()}

    def _said(self) -> dict[str, tuple[str, str]]:
        found = re.findall(r"replica (\S+) at http://(\S+) on core ([\d,]+) of", self.log)
        return {name: (at, cores) for name, at, cores in found}


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port))).close()
    except OSError:
        return False
    return True


@contextmanager
def replicas(
    folder: Path,
    count: str,
    modes: str = "eager,inference_mode",
    address: str = "",
    serving: bool = True,
    **engine: object,
) -> Iterator[Command]:
    """The command until the block ends; `serving`: once it serves. `address`: of a cluster that is there."""
    folder.mkdir()
    arguments = [address, count, modes, *fake_engine_command(**engine)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LAUNCHBOUND_")}
    kept |= {"PYTHONPATH": str(ROOT), "RAY_AUTH_TOKEN": TOKEN}
    kept["LAUNCHBOUND_CACHE_FOLDER"] = str(folder / "cache")
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE, *arguments], env=kept, stdout=out, stderr=err, cwd=folder
        )
    command = Command(process, folder)
    try:
        if serving:
            out, expected = folder / "out", int(count)
            until(lambda: "serving on" in out.read_text() or process.poll() is not None, "it", START_SECONDS)
            until(lambda: len(command.addresses()) >= expected, "the lines of replicas", START_SECONDS)
        yield command
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(START_SECONDS)


def ray_is_here() -> None:
    if importlib.util.find_spec("ray") is None:
        without("Ray is not installed: pip install -e '.[ray]'")
    if len(os.sched_getaffinity(0)) < 2:
        without("two replicas need two cores")


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a Ray that outlives the commands which join it."""
    ray_is_here()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN", TOKEN)
        with local_ray({}) as address:
            yield address


def test_an_engine_that_refuses_its_settings_ends_the_command_with_2_and_its_words(
    cluster: str, tmp_path: Path
) -> None:
    """Before the first one serves: a command that fails leaves nothing."""
    words = "no model 'none': name a folder"
    fault = {"exit": 2, "says": f"launchbound engine: {words}"}
    with replicas(tmp_path / "refused", "1", address=cluster, serving=False, **fault) as refused:
        assert refused.process.wait(START_SECONDS) == 2
        assert words in refused.log.splitlines()[-1]


@pytest.fixture(scope="module")
def first(cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    with replicas(tmp_path_factory.mktemp("replicas") / "first", "2", address=cluster) as command:
        yield command


@pytest.fixture(scope="module")
def http(first: Command) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=first.url, timeout=180, trust_env=False) as client:
        yield client


def total(address: str, outcome: str) -> float:
    page = httpx.get(f"http://{address}/metrics", headers=FRESH, trust_env=False).text
    lines = [line for line in page.splitlines() if line.startswith("launchbound_requests_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines if f'outcome="{outcome}"' in line)


def test_replicas_have_addresses_and_cores_of_their_own_and_share_the_requests(
    first: Command, http: httpx.Client
) -> None:
    addresses = first.addresses()
    assert len(set(addresses.values())) == 2
    assert len(set(first.cores().values())) == 2
    answered = Counter[str]()

    def both() -> bool:
        answer = http.post(GENERATE, json=BODY)
        assert answer.status_code == 200
        answered[answer.headers["x-launchbound-replica"]] += 1
        return len(answered) == 2

    until(both, "an answer of each replica")
    assert set(answered) == set(addresses)
    for address in addresses.values():
        assert httpx.get(f"http://{address}/health/ready", trust_env=False).status_code == 200
    assert sum(total(address, "ok") for address in addresses.values()) == answered.total()


def test_events_arrive_as_they_are_made_and_a_client_that_hangs_up_ends_its_request_at_the_replica(
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
    engines = [process for process in _processes_of_ray() if _is_engine(process)]
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


def test_a_replica_whose_process_is_killed_is_replaced(first: Command, http: httpx.Client) -> None:
    before = set(first.addresses())
    next(process for process in _processes_of_ray() if process.name().startswith("ray::ServeRepli")).kill()
    until(
        lambda: len(after := set(first.addresses())) == 2 and len(after - before) == 1,
        "another replica",
        START_SECONDS,
    )
    assert http.post(GENERATE, json=BODY).status_code == 200


def _processes_of_ray() -> list[psutil.Process]:
    """Those of the one that this process started, beside its commands."""
    (ray,) = (one for one in psutil.Process().children() if "ray_cluster.py" in " ".join(one.cmdline()))
    return ray.children(recursive=True)


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


def test_a_rolling_update_loses_no_request_and_the_last_command_ends_its_replicas(
    first: Command, cluster: str, tmp_path: Path
) -> None:
    """The last one that uses them."""
    client = Client(first.url)
    try:
        with replicas(tmp_path / "new", "1", "eager", cluster) as new:
            assert new.url == first.url
            assert first.process.wait(START_SECONDS) == 0
            assert "another command has taken over" in first.log
            client.stop()
            assert set(client.statuses) == {200}
            until(lambda: len(new.addresses()) == 1, "the end of the old replicas", START_SECONDS)
            document = httpx.get(f"{new.url}/v1/modes", trust_env=False).json()
            assert [mode["mode"] for mode in document["modes"]] == ["eager"]
            new.process.send_signal(signal.SIGTERM)
            assert new.process.wait(START_SECONDS) == 0
    finally:
        client.stop()
    until(lambda: not any(map(_is_engine, _processes_of_ray())), "the end of the engines")


@pytest.mark.long
def test_nothing_is_left_of_a_command_with_a_ray_of_its_own_that_was_ended(tmp_path: Path) -> None:
    ray_is_here()
    with replicas(tmp_path / "own", "1") as own:
        children, port = descendants(own.process.pid), urlsplit(own.url).port
        own.process.send_signal(signal.SIGTERM)
        assert own.process.wait(START_SECONDS) == 0
        until(lambda: all(gone(pid) for pid in children), "the end of what was started")
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://127.0.0.1:{port}/health/live", trust_env=False)
