"""Prometheus finds replicas by the file that `serve --replicas` keeps, with the job as the manual has it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.support.processes import without

try:
    from service.replicas import Place, write_targets
except ModuleNotFoundError:
    without("Ray is not installed: pip install launchbound[ray]")

MANUAL = Path(__file__).parents[2] / "docs" / "replicas.md"


def test_the_documented_job_finds_every_replica_with_its_instance(tmp_path: Path, promtool: str) -> None:
    path = tmp_path / "targets.json"
    places = [
        Place(
            actor=f"actor-{name}",
            name=name,
            node="127.0.0.1",
            address=f"127.0.0.1:{port}",
            cores=[0],
        )
        for name, port in (("x", 40_001), ("y", 40_002))
    ]
    write_targets(path, places)
    job = re.search(r"```yaml\n(scrape_configs:.*?)```", MANUAL.read_text(), re.DOTALL)
    assert job is not None
    configuration = tmp_path / "prometheus.yml"
    configuration.write_text(re.sub(r"files: \[.*\]", f"files: [{path}]", job[1]))
    command = [promtool, "check", "service-discovery", "--timeout=2s", str(configuration), "launchbound"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    for place in places:
        assert f'"instance": "{place.name}@{place.address}"' in found.stdout
        assert f'"__address__": "{place.address}"' in found.stdout
