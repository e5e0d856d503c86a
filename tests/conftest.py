"""What the tests of several modules share."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from service.machine import pin
from tests.fuzz.service import SEED, VARIABLE
from tests.support.serving import Front, running
from tests.support.start_up import FEW_SAMPLES, few_samples
from tests.support.whole_service import WholeService, whole_service, write_small_tiny

# Before torch is loaded. Waiting threads would spin, and the workers have more of them than there are cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")  # no test depends on time

TESTS = Path(__file__).parent
CORES = os.sched_getaffinity(0)
GRAPHS_BEFORE = pytest.StashKey[int]()
BY_FOLDER = {"end_to_end": "end_to_end", "chaos": "long", "fuzz": "long", "stack": "stack", "gpu": "gpu"}
LONGEST_FIRST: tuple[set[str], ...] = ({"ray"}, {*BY_FOLDER.values(), "browser"}, {"compiles"}, {"slow"})
"""Marks of the files that take longest, then of those that take long; a file is as its longest test."""


REAPED_WITHIN_SECONDS = 10.0

MAKING_WAY = 10
"""The niceness of workers that do not test with Ray."""

ONE_AT_A_TIME = "/test_ray.py"
"""Files that start a Ray, which gives its nodes 30 s to start: one worker runs them."""

SHARE_ONE_SERVICE = ("tests/front/lab/", "tests/fuzz/")
"""The tests of each of these share what their folder's fixtures start: a service, and the lab's a browser."""

SHARE_THE_WHOLE_SERVICE = (
    *(f"tests/end_to_end/test_{name}.py" for name in ("anatomy", "auto", "openai", "service")),
    "tests/stack/",
)
"""They share `service` or its compiled code, so one worker runs them."""


def pytest_configure() -> None:
    """Started with `nohup`, survive a hang-up without handing that on.

    A child inherits what is ignored, but no handler, and in some tests a hang-up ends it.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)


def pytest_report_header() -> str:
    """How to have the same requests generated again."""
    return f"generated requests: {VARIABLE}={SEED}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the folders that need a whole service, a Prometheus or a GPU, and sort the files.

    The longest begin: begun last, one of them would keep one worker busy at the end.
    """
    places: dict[Path, int] = {}
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        if folder in BY_FOLDER:
            item.add_marker(BY_FOLDER[folder])
        marks = {mark.name for mark in item.iter_markers()}
        place = next(
            (n for n, of_length in enumerate(LONGEST_FIRST) if marks & of_length), len(LONGEST_FIRST)
        )
        places[item.path] = min(place, places.get(item.path, place))
    items.sort(key=lambda item: places[item.path])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Iterator[None]:
    """Import all modules without collecting garbage, of which they have next to none, and never look for it
    there: there are a million objects.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


class FileScheduling(LoadScopeScheduling):
    """A file's tests run on one worker, because they share what its fixtures made."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file.endswith(ONE_AT_A_TIME):
            return ONE_AT_A_TIME
        for folder in SHARE_ONE_SERVICE:
            if file.startswith(folder):
                return folder
        return SHARE_THE_WHOLE_SERVICE[0] if file.startswith(SHARE_THE_WHOLE_SERVICE) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FileScheduling:
    """How several workers share the tests (`make test`)."""
    return FileScheduling(config, log)


@pytest.fixture
def restored_globals() -> Iterator[None]:
    """An engine freezes globals of its process, which here is that of all tests. It takes few samples."""
    import torch  # which most tests do without
    from torch._dynamo import config as dynamo_config

    threads = torch.get_num_threads()
    limits = ("recompile_limit", "accumulated_recompile_limit")
    with few_samples(), dynamo_config.patch({name: getattr(dynamo_config, name) for name in limits}):
        yield
    torch.compiler.set_stance("default")
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def common_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder of the whole run, for tests that are not about an empty one.

    The C++ of studies and probes, and torch's own headers for each folder that Inductor compiles into, then
    cost their time once, and not once per file and worker.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "common-cache"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def short_tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `tiny` of few layers, which is served under that name."""
    from tests.support.small_models import write_few_layers  # it imports torch

    folder = tmp_path_factory.mktemp("few-layers") / "tiny"
    folder.mkdir()
    return write_few_layers(folder)


@pytest.fixture(scope="session")
def shared_code(tmp_path_factory: pytest.TempPathFactory, common_cache: Path) -> dict[str, str]:
    """The environment of services that share a model, which no other test has, and its compiled code."""
    folder = tmp_path_factory.mktemp("small") / "tiny"
    folder.mkdir()
    return {
        **FEW_SAMPLES,
        "LAUNCHBOUND_MODEL": str(write_small_tiny(folder)),
        "LAUNCHBOUND_CACHE_FOLDER": str(common_cache),
    }


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory, shared_code: dict[str, str]) -> Iterator[WholeService]:
    """The real service, front and engine, in five modes: the first to compile of its model."""
    with whole_service(tmp_path_factory.mktemp("service") / "log", shared_code) as started:
        yield started


def compiled_graphs() -> int:
    """Graphs that torch has compiled in this process; 0 where it is not even imported."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])


def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Have tests with Ray go first on a machine that all workers keep busy: it gives a node 30 s to start.

    They begin first of all (`pytest_collection_modifyitems`). A worker that runs anything else makes way from
    then on, with all that it starts.
    """
    if "PYTEST_XDIST_WORKER" in os.environ and not item.get_closest_marker("ray") and os.nice(0) == 0:
        os.nice(MAKING_WAY)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Count before the fixtures are made, those of a module too."""
    item.stash[GRAPHS_BEFORE] = compiled_graphs()
    yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """`make test-quick` leaves out what is marked, so what compiles has to be."""
    yield
    marked = {mark.name for mark in item.iter_markers()} & {"compiles", *BY_FOLDER.values()}
    if not marked and compiled_graphs() > item.stash[GRAPHS_BEFORE]:
        pytest.fail("this test compiles: mark it with pytest.mark.compiles")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """A child that has ended and is never waited for would fail another test, which lists processes.

    An engine in a test's own process pins that to its core, where all workers would crowd from then on.
    """
    yield
    if os.sched_getaffinity(0) != CORES:
        pin(sorted(CORES))
    deadline = time.monotonic() + REAPED_WITHIN_SECONDS
    while (ended := _ended_child()) is not None:
        if time.monotonic() > deadline:
            os.waitpid(ended, 0)
            pytest.fail(f"this test, or one before it, has not waited for its child {ended}, which has ended")
        time.sleep(0.05)


def _ended_child() -> int | None:
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return found.si_pid if found else None


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    """A front whose fake engine is a CPU with all modes ready, shared by a module's tests."""
    with running() as started:
        started.await_ready()
        yield started


@pytest.fixture(scope="module")
def cuda_front() -> Iterator[Front]:
    """The same as on a CUDA device."""
    with running(device="cuda") as started:
        started.await_ready()
        yield started


@pytest.fixture
def own_front() -> Iterator[Front]:
    """A front of one test's own, to be broken."""
    with running() as started:
        started.await_ready()
        yield started
