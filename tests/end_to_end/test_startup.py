"""`launchbound startup`, with services of a small model: one cold start, and one warm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from loadtests.startup import PAGE_FILE, PHASES, STARTS_FILE, Starts
from tests.support.processes import descendants
from tests.support.start_up import FEW_SAMPLES
from tests.support.whole_service import write_small_tiny

ROOT = Path(__file__).parents[2]


class Done(NamedTuple):
    """The ended process, and the processes that it has left."""

    folder: Path
    ended: subprocess.CompletedProcess[str]
    left: set[int]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("startup")
    model, out = folder / "tiny", folder / "out"
    model.mkdir()
    options = [f"--model={write_small_tiny(model)}", "--modes=eager,compiled", "--batch-sizes=1"]
    command = ["startup", "--cold=1", "--warm=1", *options, f"--out={out}", "--json"]
    environment = {**os.environ, **FEW_SAMPLES, "LAUNCHBOUND_CACHE_FOLDER": str(folder / "cache")}
    arguments = [sys.executable, str(ROOT / "launchbound.py"), *command]
    before = descendants(os.getpid())  # other tests' services
    ended = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
    return Done(folder, ended, {*descendants(os.getpid())} - {*before})


@pytest.fixture
def starts(done: Done) -> Starts:
    assert done.ended.returncode == 0, done.ended.stderr
    found: Starts = json.loads((done.folder / "out" / STARTS_FILE).read_text())["starts"]
    return found


def test_every_part_of_both_starts_is_there_and_they_sum_to_the_whole(starts: Starts) -> None:
    for one in (*starts["cold"], *starts["warm"]):
        assert min(one.values()) >= 0
        assert sum(one[phase] for phase in PHASES) == pytest.approx(one["total_seconds"], abs=1e-3)
        for phase in ("front", "import", "weights", "dynamo", "parity", "measuring"):
            assert one[phase] > 0


def test_a_cold_start_compiles_and_a_warm_one_does_not(starts: Starts) -> None:
    ((cold,), (warm,)) = starts["cold"], starts["warm"]
    assert (cold["compiled"], warm["compiled"]) == (2, 0)
    assert cold["compiler_runs"] > warm["compiler_runs"]
    assert cold["compiler"] > 0
    assert cold["inductor"] > 0


def test_the_result_is_one_document_and_beside_it_are_a_table_and_a_page(starts: Starts, done: Done) -> None:
    document = json.loads(done.ended.stdout)
    assert {"cold", "warm"} < document.keys()
    for kind, (one,) in starts.items():
        assert document[kind]["total_seconds"]["mean"] == one["total_seconds"]
    assert "C++ compiler or Triton" in done.ended.stderr
    assert (done.folder / "out" / PAGE_FILE).is_file()


def test_neither_a_process_nor_a_cache_is_left(starts: Starts, done: Done) -> None:
    assert list((done.folder / "cache").iterdir()) == []
    assert done.left == set()
