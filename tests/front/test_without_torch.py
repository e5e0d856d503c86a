"""The front process never maps torch, and stays small."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from tests.cli.test_serve import await_ready, served
from tests.support.serving import BODY

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
