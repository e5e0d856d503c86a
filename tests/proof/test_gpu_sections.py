"""Every section from its first row to its last, on a CPU that stands in for the device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from service.modes import MODES
from service.proof import gpu_sections
from service.proof.gpu_goals import PATH_VARIABLE, Record, Records, cells_of, read_records, sizes_of
from service.proof.gpu_sections import session_fields
from service.records import EngineSettings
from service.step import profiling
from service.step.trace import Event, step_marks
from tests.step.made import KERNELS as REPLAYED
from tests.step.made import call, graph_id, kernel, replays

KERNELS = 3

host_events = profiling.chrome_events


class HostEvent:
    """A CUDA event by the host's clock: here nothing runs beside it."""

    def __init__(self, enable_timing: bool = False) -> None:
        del enable_timing
        self._at = 0.0

    def record(self) -> None:
        self._at = perf_counter()

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return False  # as if all calls had been queued before the device began with them

    def elapsed_time(self, end: HostEvent) -> float:
        return (end._at - self._at) * 1e3


def with_kernels(session: Any) -> list[Event]:
    """The session's events; in every mark kernels of 1 µs, before it one that separates."""
    events = host_events(session)
    for place, mark in enumerate(step_marks(events)):
        begin, number = mark["ts"], 100 * (place + 1)
        events += [call("cudaLaunchKernel", begin - 1e-3, number), kernel("put", begin - 5, number)]
        for n in range(KERNELS):
            events.append(call("cudaLaunchKernel", begin, number + 1 + n))
            events.append(kernel(f"k{n}", begin + 2 * n, number + 1 + n, 1.0))
    return events


@pytest.fixture(autouse=True)
def cpu_for_cuda(common_cache: Path, short_tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sections serve a shallow model, and without a layout chosen by timing."""

    def plain(**fields: Any) -> EngineSettings:
        return EngineSettings(**{**fields, "model": str(short_tiny), "dtype": "float32", "linears": "aten"})

    monkeypatch.setattr(gpu_sections, "EngineSettings", plain)
    threads = torch.get_num_threads()
    monkeypatch.setenv("LAUNCHBOUND_CACHE_FOLDER", str(common_cache))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(common_cache))
    monkeypatch.setattr("service.step.loaded_model.choose_device", lambda requested: torch.device("cpu"))
    monkeypatch.setattr(profiling, "chrome_events", with_kernels)
    fakes: dict[str, object] = {
        "Event": HostEvent,
        "synchronize": lambda: None,
        "_sleep": lambda cycles: None,
        "empty_cache": lambda: None,
        "mem_get_info": lambda device: (2**30, 2**30),
        "get_device_properties": lambda number: SimpleNamespace(
            name="a GPU", major=9, minor=0, multi_processor_count=132, total_memory=2**37
        ),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    yield
    torch.compiler.set_stance("default")
    torch.set_num_threads(threads)


def rows_of(folder: Path, section: Callable[[Records], object]) -> dict[str, list[Record]]:
    rows = Records(folder / "rows.jsonl")
    section(rows)
    found = read_records(rows.path)
    kinds: dict[str, list[Record]] = {}
    for row in found:
        kinds.setdefault(row["kind"], []).append(row)
    return kinds


def on_cpu(function: Callable[..., Any], where: torch.device, *arguments: Any) -> Any:
    """`function` of a CPU, in place of the device it was called for."""
    del where
    return function(torch.device("cpu"), *arguments)


@pytest.mark.slow
def test_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_sections, "BUFFER_BYTES", (2**20,))
    monkeypatch.setattr(gpu_sections, "memory_bandwidth", partial(on_cpu, gpu_sections.memory_bandwidth))
    found = rows_of(tmp_path, gpu_sections.device)
    assert list(found) == ["versions", "environment", "gpu", "bandwidth"]
    assert found["versions"][0]["packages"]["torch"] == torch.__version__
    assert {"commit", "gpus"} <= found["environment"][0].keys()


@pytest.mark.slow
def test_profiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_sections, "PROFILED_MODE", "inference_mode")
    monkeypatch.setattr(gpu_sections, "PROFILED_BATCH", 1)
    monkeypatch.setattr(gpu_sections, "METER_ROUNDS", 7)
    monkeypatch.setattr(gpu_sections, "STEPS_PER_ROUND", 2)
    monkeypatch.setattr(gpu_sections, "new_meter", partial(on_cpu, gpu_sections.new_meter))
    found = rows_of(tmp_path, gpu_sections.profiler)
    assert len(found["unprofiled"]) == 1
    assert [row["kernels_by_window"] for row in found["session"]] == [
        [KERNELS] * gpu_sections.PROFILED_STEPS
    ] * 4
    assert found["instrumentation"][0]["low"] is not None
    assert len(list(tmp_path.glob("*.trace.json.gz"))) == 4


@pytest.mark.slow
def test_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_sections, "SIZES_MODES", ["inference_mode"])
    monkeypatch.setattr(gpu_sections, "SIZES_ROUNDS", 2)
    found = rows_of(tmp_path, lambda rows: gpu_sections.sizes(rows, "small", "1,2"))
    assert found["plan"][0]["jobs"] == len(found["job"]) == 4
    assert all(row["profile"] is None for row in found["job"])
    for profiled in found["kernels"]:
        assert profiled["kernels"]["kernels"] == KERNELS
        assert profiled["kernels"]["busy_seconds"] == pytest.approx(KERNELS * 1e-6)
    # The profiler's table comes after all timings.
    assert max(row["at"] for row in found["job"]) <= min(row["at"] for row in found["kernels"])
    rows = sizes_of([row for rows in found.values() for row in rows])
    assert [(row["batch"], row["effective"]) for row in rows] == [
        (1, "inference_mode"),
        (2, "inference_mode"),
    ]
    assert all(row["tokens_per_second"] == row["batch"] / row["wall_seconds"] > 0 for row in rows)


def test_attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_sections, "ATTENTION_BATCHES", (1, 2))
    found = rows_of(tmp_path, lambda rows: gpu_sections.attention(rows, "cpu"))["attention"]
    assert len(found) == 2 * 2 * 4
    known = {row["backend"] for row in found if "seconds" in row}
    refused = {row["backend"] for row in found if row.get("unavailable")}
    assert (known, refused) == ({"math", "flash"}, {"efficient", "cudnn"})
    assert all(0 < row["low"] <= row["seconds"] <= row["high"] for row in found if "seconds" in row)


def test_the_modes_of_the_sizes_are_modes() -> None:
    named = set(gpu_sections.SIZES_MODES)
    assert {"reduce-overhead", "cuda-graph", "inference_mode"} <= named <= set(MODES)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_ladder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    monkeypatch.setattr(gpu_sections, "LADDER_MODES", ["eager", "inference_mode"])
    monkeypatch.setattr(gpu_sections, "LADDER_BATCHES", [1, 2])
    monkeypatch.setattr(gpu_sections, "NEW_TOKENS", 64)  # beyond the least reach, as on a GPU
    found = rows_of(tmp_path, lambda rows: gpu_sections.ladder(rows, dtype))
    assert {row["mode"] for row in found["mode"] if row["state"] == "ready"} == {"eager", "inference_mode"}
    if dtype == "float32":
        assert list(found) == ["plan", "mode"]
        return
    assert len(found["job"]) == found["plan"][0]["jobs"] == 9 * 2 * 2
    assert {row["outcome"] for row in found["job"]} == {"ok"}
    cells = cells_of([row for rows in found.values() for row in rows])
    assert [(row["mode"], row["batch"], row["rounds"]) for row in cells] == [
        ("eager", 1, 8),
        ("eager", 2, 8),
        ("inference_mode", 1, 8),
        ("inference_mode", 2, 8),
    ]
    assert all(row["speedup"] > 0 and row["kernels"] is None for row in cells)


def test_a_session_counts_kernels_by_window_and_launch_calls() -> None:
    # The second replay's kernels carry the first one's id, as from a process's second session on.
    events = replays(2, kernel_id=lambda step: graph_id(0))
    fields = session_fields(events)
    assert fields["kernels_by_window"] == [REPLAYED, REPLAYED]
    assert fields["busy_seconds_by_window"] == pytest.approx([180e-6, 180e-6])
    assert fields["span_seconds_by_window"] == pytest.approx([224.5e-6, 224.5e-6])
    assert (fields["launches"], fields["graph_launches"]) == (4, 2)


@pytest.mark.slow
@pytest.mark.long
def test_the_gpu_tests_write_a_row_each(tmp_path: Path) -> None:
    path = tmp_path / "tests.jsonl"
    done = subprocess.run(
        [sys.executable, "-m", "service.proof.gpu_sections", "tests"],
        env={**os.environ, PATH_VARIABLE: str(path), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    collected, *rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert done.returncode == 0, done.stdout
    assert collected["count"] == len(rows) > 0
    assert {row["outcome"] for row in rows} == {"skipped"}
    assert all(row["name"].startswith("tests/gpu/") for row in rows)
