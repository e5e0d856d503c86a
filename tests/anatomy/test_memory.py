"""Memory: sizes are the tensors' own, growth is what a step touches, a snapshot is of its steps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch
from rich.filesize import decimal

from service.anatomy import memory as memory_resident
from service.anatomy.common import StudyError
from service.measure.cases import Bench
from tests.anatomy.conftest import printed
from tests.support.small_models import BUCKETS, CONFIG, quiet

STATS = {
    "allocated_current": 60, "allocated_peak": 70, "active_current": 64, "active_peak": 80,
    "reserved_current": 80, "reserved_peak": 100, "inactive_split_current": 16, "inactive_split_peak": 20,
    "alloc_retries": 3, "ooms": 1,
}  # fmt: skip


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls to CUDA's allocator, replaced for a machine without CUDA."""
    calls: list[str] = []

    def record(enabled: str | None = "all", max_entries: int = 0) -> None:
        calls.append("stop" if enabled is None else "record")

    def dump(filename: str) -> None:
        calls.append("dump")
        Path(filename).write_bytes(b"snapshot")

    monkeypatch.setattr(
        torch.cuda, "memory", SimpleNamespace(_record_memory_history=record, _dump_snapshot=dump)
    )
    return calls


def test_static_memory_is_the_weights_the_tables_the_cache_and_the_inputs(bench: Bench) -> None:
    finding = memory_resident.read_memory(bench, memory_resident.MemoryArguments(mode="eager"), quiet)
    held = {part.name: part.bytes for part in finding.parts}
    rows = max(BUCKETS)
    floats = 4
    cache = 2 * CONFIG.layers * rows * (CONFIG.context + 1) * CONFIG.kv_heads * CONFIG.head_width * floats
    assert held["cache"] == cache
    assert held["parameters"] == floats * sum(p.numel() for p in bench.model.parameters())
    assert held["buffers"] == sum(b.numel() * b.element_size() for b in bench.model.buffers())
    assert held["inputs"] == 8 * (sum(bench.buffers[1].chunks) + 4)
    assert finding.allocator is None  # on a CPU
    assert f"parameter {decimal(held['parameters'])}, cache" in printed(finding)
    text = printed(msgspec.structs.replace(finding, allocator=memory_resident.statistics(STATS, 32)))
    for word in ("parameters", "cache", "eager", "fragmentation", "graph_pool"):
        assert word in text


def test_statistics_have_the_share_that_is_not_active_and_what_lies_in_private_pools() -> None:
    def fragmentation(stats: dict[str, int]) -> list[float | None]:
        found = {one.name: one for one in memory_resident.statistics(stats, 0)}["fragmentation"]
        return [found.value, found.peak]

    assert fragmentation(STATS) == pytest.approx([1 - 64 / 80, 1 - 80 / 100])
    assert fragmentation(dict.fromkeys(STATS, 0)) == [0.0, 0.0]
    pools = [(0, 0), (0, 1), (2, 0)]
    segments = [
        {"total_size": size, "segment_pool_id": pool} for size, pool in zip((5, 7, 11), pools, strict=True)
    ]
    assert memory_resident.pool_bytes(segments) == 18


def test_a_snapshot_is_written_after_the_steps_and_recording_ends_even_where_one_fails(
    tmp_path: Path, recorder: list[str]
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StudyError, match="cannot write"), memory_resident.snapshot(tmp_path / "file"):
        pass
    assert recorder == []

    def fail() -> None:
        assert recorder == ["record"]
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"), memory_resident.snapshot(tmp_path / "new"):
        fail()
    assert recorder == ["record", "dump", "stop"]
    assert (tmp_path / "new" / memory_resident.SNAPSHOT_FILE).exists()
