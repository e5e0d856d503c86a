"""`serve --replicas` as processes of their own, with the fake engine."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.serving import fake_engine_command, until

ROOT = Path(__file__).parents[2]
START_SECONDS = 400.0

TOKEN = secrets.token_hex(32)

SERVE = """
import os
import sys
from pathlib import Path
from service.cli.signals import ended_in_order
from service.front.settings import Settings
from service.replicas.cluster import environment
address, count, targets, modes, *engine = sys.argv[1:]
os.environ.update(environment(address or None))
from service.replicas.application import replica_count, serve_replicas
settings = Settings(
    port=0, modes=modes, batch_sizes=[1], drain_seconds=1.0, request_timeout_seconds=30.0, log_requests="all"
)
count = replica_count(count)
sys.exit(serve_replicas(settings, count, 1, address or None, Path(targets), ended_in_order, engine))
"""


@dataclass(frozen=True)
class Command:
    """A running command; its standard output and error are in files."""

    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def url(self) -> str:
        """The proxy's."""
        found = re.search(r"^launchbound: serving on (\S+)$", (self.folder / "out").read_text(), re.MULTILINE)
        assert found, self.log
        return found[1]

    @property
    def log(self) -> str:
        """What it wrote on standard error, with what its replicas wrote there."""
        return (self.folder / "err").read_text(errors="replace")

    @property
    def cluster(self) -> str:
        """The address that `--address` takes."""
        found = re.search(r"--address (\S+)", self.log)
        assert found, self.log
        return found[1]

    def targets(self) -> list[dict[str, Any]]:
        """The file for Prometheus."""
        content: list[dict[str, Any]] = json.loads((self.folder / "targets.json").read_text())
        return content

    def addresses(self) -> dict[str, str]:
        """Name → host:port of each replica."""
        return {one["labels"]["instance"].partition("@")[0]: one["targets"][0] for one in self.targets()}

    def cores(self) -> dict[str, list[int]]:
        """Name → cores of each replica, as the command says."""
        found = re.findall(r"replica (\S+) at \S+ on core ([\d,]+) of", self.log)
        return {name: [int(core) for core in cores.split(",")] for name, cores in found}


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
    arguments = [address, count, str(folder / "targets.json"), modes, *fake_engine_command(**engine)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LAUNCHBOUND_")}
    # Else Ray keeps a token in the home of whoever runs the tests.
    kept |= {"PYTHONPATH": str(ROOT), "RAY_AUTH_TOKEN": TOKEN}
    kept["LAUNCHBOUND_CACHE_FOLDER"] = str(folder / "cache")
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE, *arguments], env=kept, stdout=out, stderr=err, cwd=folder
        )
    command = Command(process, folder)
    try:
        if serving:
            until(
                lambda: "serving on" in (folder / "out").read_text() or process.poll() is not None,
                "replicas",
                START_SECONDS,
            )
            # The line that says where to join comes last.
            until(lambda: "--address" in command.log or process.poll() is not None, "the address", 30)
        yield command
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(START_SECONDS)
