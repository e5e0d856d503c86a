"""`launchbound stack`: runs Prometheus, where it is installed, beside a service until Ctrl-C."""

from __future__ import annotations

import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from urllib.parse import urlsplit

import yaml

BOARDS = Path(__file__).parent / "grafana"
CONFIGURATION = Path(__file__).parent / "prometheus.yml"
LOAD_GENERATOR = "127.0.0.1:9646"
"""Where a sweep on this machine exports its own metrics."""

LOOK_SECONDS = 1.0
START_SECONDS = 30.0

NO_PROMETHEUS = """\
Prometheus: there is no `prometheus` on the PATH, so the service runs alone. Install it (Debian and Ubuntu:
            apt-get install prometheus; others: https://prometheus.io/download/) and start again."""


class PrometheusError(RuntimeError):
    """Prometheus did not start; the message has the end of its log."""


def watch(
    service: str,
    binary: str | None,
    folder: Path,
    port: int,
    scrape_seconds: int,
    report: Callable[[str], None],
    owned: Callable[[list[str]], list[str]] = list,
) -> int:
    """Run Prometheus at `binary` (None: there is none) beside the service at `service` until Ctrl-C.

    It scrapes every `scrape_seconds`. `report` is called with the lines to print; the rest as in
    `local_prometheus`. Returns the exit code: 0 after Ctrl-C, 1 where the service or Prometheus ended.
    """
    targets = {"launchbound": [urlsplit(service).netloc], "locust": [LOAD_GENERATOR]}
    beside: AbstractContextManager[str | None] = nullcontext()
    if binary:
        beside = local_prometheus(binary, folder, targets, f"{scrape_seconds}s", port, owned)
    try:
        with beside as prometheus:
            for line in _lines(service, prometheus, scrape_seconds):
                report(line)
            addresses = {"the service": service} | ({"Prometheus": prometheus} if prometheus else {})
            while not (ended := _ended(addresses)):
                time.sleep(LOOK_SECONDS)
            report(f"{ended} has ended; its log is in {folder}")
            return 1
    except KeyboardInterrupt:
        return 0


def _lines(service: str, prometheus: str | None, scrape_seconds: int) -> Iterator[str]:
    yield f"service:    {service} (/docs, /metrics; modes become ready one after another)"
    if prometheus is None:
        yield NO_PROMETHEUS
    else:
        yield f"Prometheus: {prometheus} (rules and alerts at /alerts)"
        source = f"a Prometheus data source with scrape interval {scrape_seconds}s"
        yield f"Grafana:    add {prometheus} as {source}, and"
        yield f"            import {BOARDS}/*.json; see docs/observability.md"
        yield f"            exemplars: label trace_id, URL {service}/v1/traces/${{__value.raw}}"
    yield "Ctrl-C stops what was started here"


def _ended(addresses: Mapping[str, str]) -> str | None:
    """The first that refuses connections, if any; the kernel accepts connections for a busy one."""
    for name, url in addresses.items():
        at = urlsplit(url)
        try:
            socket.create_connection((at.hostname or "", at.port or 0), timeout=5).close()
        except OSError:
            return name
    return None


def configuration(targets: Mapping[str, Sequence[str]], interval: str) -> str:
    """The committed configuration for fixed addresses: job → ["host:port", …]; other jobs are left out."""
    content = yaml.safe_load(CONFIGURATION.read_text(encoding="utf-8"))
    names = ("scrape_interval", "scrape_timeout", "evaluation_interval")
    content["global"] = dict.fromkeys(names, interval)
    content["rule_files"] = [str(CONFIGURATION.parent / name) for name in content["rule_files"]]
    content["scrape_configs"] = [
        {"job_name": job["job_name"], "static_configs": [{"targets": list(targets[job["job_name"]])}]}
        for job in content["scrape_configs"]
        if job["job_name"] in targets
    ]
    return str(yaml.safe_dump(content))


@contextmanager
def local_prometheus(
    binary: str,
    folder: Path,
    targets: Mapping[str, Sequence[str]],
    interval: str = "5s",
    port: int = 0,
    owned: Callable[[list[str]], list[str]] = list,
) -> Iterator[str]:
    """Run `binary` until the block ends, its data and configuration in `folder`; yields its address.

    `port` 0 takes a free one. `owned` makes of its command line one that also ends when this process does,
    however that ends. Raises PrometheusError with the end of its log where it does not start.
    """
    (folder / "prometheus.yml").write_text(configuration(targets, interval), encoding="utf-8")
    command = [
        binary,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--enable-feature=exemplar-storage",
    ]
    log = folder / "prometheus.log"
    with log.open("w", encoding="utf-8") as output:
        running = subprocess.Popen(owned(command), stdout=output, stderr=output)
    try:
        yield f"http://{_listening(running, log)}"
    finally:
        running.terminate()
        running.wait(timeout=20)


def _listening(running: subprocess.Popen[bytes], log: Path) -> str:
    """Wait until the log says that the server is ready; its address (the same lines in versions 2 and 3)."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and running.poll() is None:
        text = log.read_text(encoding="utf-8", errors="replace")
        address = re.search(r'msg="?Listening on"? address=(\S+)', text)
        if address and "Server is ready" in text:
            return address[1]
        time.sleep(0.05)
    last = log.read_text(encoding="utf-8", errors="replace")[-500:]
    raise PrometheusError(f"Prometheus did not start; {log} ends with: {last}")
