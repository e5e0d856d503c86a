"""Plain locust as master and workers, and its steps through batch sizes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import pairwise

import pytest

from loadtests.run.target import samples
from tests.support.fake_service import Script, fake_service
from tests.support.plain_locust import LOCUSTFILE, ROOT, command, free_port, ran, scrape_once

pytestmark = pytest.mark.slow

STEPS = f"{LOCUSTFILE},{LOCUSTFILE.parent / 'batch_steps.py'}"
STEPPING = (
    *("--modes", "eager,compiled", "--batch-sizes", "4,1"),
    *("--step-seconds", "1", "--step-users", "2"),
)

PAIR = """
import json
from locust.env import Environment
from loadtests.run.exporter import Exporter
from loadtests.run.plain_locust import count_requests
from prometheus_client import generate_latest
from time import sleep

master, worker = Environment(), Environment()
runner = master.create_master_runner("127.0.0.1", 0)
worker.create_worker_runner("127.0.0.1", runner.server.port)
exporter = Exporter({"run": "a"})
count_requests(master, exporter)
count_requests(worker, Exporter({"run": "unused"}))
for milliseconds, failure in ((0.4, None), (1.4, None), (147.2, ValueError("no"))):
    worker.events.request.fire(
        request_type="POST", name="eager b=4", response_time=milliseconds, response_length=1,
        exception=failure, context={"mode": "eager", "batch": "4"},
    )
worker.events.request.fire(
    request_type="GET", name="other", response_time=1, response_length=1, exception=None, context={}
)
worker.runner._send_stats()
worker.runner._send_stats()
while runner.stats.num_requests < 4:
    sleep(0.01)
print(json.dumps(generate_latest(exporter.registry).decode()))
"""


def scraped_pair() -> str:
    """The master's metrics after one worker has reported four requests, three of them ours."""
    done = subprocess.run(
        [sys.executable, "-c", PAIR], capture_output=True, text=True, timeout=60, check=True
    )
    return str(json.loads(done.stdout))


def test_a_master_counts_what_its_workers_report_each_request_once_and_unrounded() -> None:
    text = scraped_pair()
    counts = samples(text, "launchbound_loadtest_requests_total")
    assert {dict(labels)["outcome"]: count for (_, labels), count in counts.items()} == {"ok": 2, "error": 1}
    buckets = samples(text, "launchbound_loadtest_latency_seconds_bucket")
    by_bound = {float(dict(labels)["le"]): count for (_, labels), count in buckets.items()}
    # Locust's own report would have these at 0, 1 and 150 ms.
    assert (by_bound[0.0005], by_bound[0.001], by_bound[0.002]) == (1, 1, 2)
    assert (by_bound[0.128], by_bound[0.256]) == (2, 3)
    (total,) = samples(text, "launchbound_loadtest_latency_seconds_sum").values()
    assert total == pytest.approx(0.149)


def test_the_master_exports_the_load_of_its_workers() -> None:
    port, master_port = free_port(), str(free_port())
    script = Script()
    with fake_service(script) as url:
        load = ["--users", "2", "--spawn-rate", "2", "--metrics-port", str(port), "--modes", "eager"]
        distributed = ["--master-port", master_port, "--master-bind-port", master_port]
        started = command(url, *load, *distributed, "--master", "--expect-workers", "2")
        worker = command(url, "--worker", *distributed, "--metrics-port", str(port))
        workers = [subprocess.Popen(worker, cwd=ROOT, stderr=subprocess.PIPE) for _ in range(2)]
        master = subprocess.Popen(started, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        try:
            text = scrape_once(port, lambda text: "_users 2.0" in text and 'outcome="ok"' in text)
        finally:
            master.terminate()
            _, log = master.communicate()
        logs = log + "".join(process.communicate()[1].decode() for process in workers)
    (counted,) = samples(text, "launchbound_loadtest_latency_seconds_count").values()
    assert counted == sum(samples(text, "launchbound_loadtest_requests_total").values())
    assert 0 < counted <= len(script.bodies)
    assert "load metrics are not exported" not in logs
    runs = {headers["x-launchbound-run"] for headers in script.headers}
    assert runs == {dict(labels)["run"] for _, labels in samples(text, "launchbound_loadtest_run_info")}


def assert_sent_in_steps(script: Script) -> None:
    """One batch size each, in their order."""
    sizes = [len(body["prompts"]) for _, body in script.bodies]
    assert (sizes[0], sizes[-1]) == (4, 1)
    # Each of two users learns of the step by itself.
    assert sum(before != after for before, after in pairwise(sizes)) <= 3


def test_workers_send_one_batch_size_each_in_their_order_and_stop() -> None:
    script, master_port, port = Script(), str(free_port()), free_port()
    distributed = ("--processes", "2", "--master-port", master_port, "--master-bind-port", master_port)
    with fake_service(script) as url:
        started = command(url, *STEPPING, *distributed, "--metrics-port", str(port), files=STEPS)
        done = ran(started)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "load metrics are not exported" not in said
    assert_sent_in_steps(script)
    names = set(re.findall(r"^POST +(\S+ b=\d+) ", said, flags=re.MULTILINE))
    assert names == {"eager b=4", "eager b=1", "compiled b=4", "compiled b=1"}


@pytest.mark.parametrize("options", [("--step-seconds", "0.5"), ("--step-users", "0")])
def test_wrong_options_of_the_steps_are_refused_at_once_with_the_remedy(options: tuple[str, str]) -> None:
    done = ran(command("http://127.0.0.1:1", *options, files=STEPS))
    assert done.returncode == 2
    assert options[0] in done.stderr
    assert "give 1 or more" in done.stderr
