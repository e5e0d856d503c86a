"""Plain locust with the repository's locust file, as a person runs it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from tests.support.serving import until

ROOT = Path(__file__).parents[2]
LOCUSTFILE = ROOT / "loadtests" / "locustfile.py"


def command(url: str, *options: str) -> list[str]:
    common = ["--headless", "--loglevel", "INFO", "--metrics-port", "0"]
    return [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--host", url, *common, *options]


def ran(arguments: list[str], cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run locust until it ends, without this package's folder given by the environment."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        arguments, capture_output=True, text=True, cwd=cwd, env=environment, timeout=60, check=False
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def scrape_once(port: int, holds: Callable[[str], bool]) -> str:
    """The first answer of a load generator's metrics for which `holds`; fails after 30 s."""

    def answer() -> str | None:
        try:
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
                text = str(response.read().decode())
        except (URLError, OSError):
            return None
        return text if holds(text) else None

    return str(until(answer, "such an answer", seconds=30))
