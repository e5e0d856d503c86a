"""One real service and one browser for all tests of the lab."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser

from service.front.launch import launched
from tests.support.browser import Tab, chromium, tab
from tests.support.made_plans import make_plan, make_report
from tests.support.made_results import CLEAR, make_results
from tests.support.serving import FRESH, Front, until
from tests.support.start_up import FEW_SAMPLES

OPTIONS = ["--modes=eager,inference_mode", "--batch-sizes=1,4"]
START_SECONDS = 240.0
PLAN = make_plan("quick", 1, ["eager", "inference_mode"], [1])
SLOWER = {mode: 3 * value for mode, value in CLEAR.items()}


@pytest.fixture(scope="package")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder: `before` with its report, `after`, slower and without one, and what is no sweep."""
    folder = tmp_path_factory.mktemp("sweeps") / "results"
    for name in ("before", "after", "notes"):
        (folder / name).mkdir(parents=True)
    make_results(folder / "before", plan=PLAN, seed=1, started="2026-01-01T00:00:00Z")
    make_results(folder / "after", SLOWER, plan=PLAN, seed=2, started="2026-01-02T00:00:00Z")
    make_report(folder / "before")
    return folder


@pytest.fixture(scope="package")
def lab_url(
    tmp_path_factory: pytest.TempPathFactory, common_cache: Path, short_tiny: Path, sweeps: Path
) -> Iterator[str]:
    """The address of a warm service with two modes, whose results folder is `sweeps`."""
    log = tmp_path_factory.mktemp("lab") / "log"
    environment = {
        "LAUNCHBOUND_CACHE_FOLDER": str(common_cache),
        "LAUNCHBOUND_MODEL": str(short_tiny),
        "LAUNCHBOUND_RESULTS_FOLDER": str(sweeps),
        **FEW_SAMPLES,
    }
    with launched(OPTIONS, log, environment) as url, httpx.Client(base_url=url, timeout=60.0) as http:

        def warm() -> bool:
            engine = http.get("/v1/modes").json()["engine"]
            return bool(engine and engine["warm"])

        until(warm, "a warm engine", START_SECONDS)
        yield url


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def http(lab_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=lab_url, headers=FRESH, timeout=60.0) as client:
        yield client


@pytest.fixture
def lab(browser: Browser, lab_url: str) -> Iterator[Tab]:
    """A wide, light page; the test fails where it ends with a problem."""
    with tab(browser, lab_url) as opened:
        yield opened


@pytest.fixture
def fake_lab(browser: Browser, front: Front) -> Iterator[Tab]:
    """The same of a front whose engine is a fake one."""
    with tab(browser, front.url) as opened:
        yield opened
