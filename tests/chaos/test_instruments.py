"""What the faults are made with does what it says: a full disk, a judgement."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.disk_faults import MEGABYTE, SmallDisk, small_disk, sweep_amiss
from tests.chaos.load_faults import Sample, judge
from tests.chaos.victim import NotPossible
from tests.support.fake_service import Script, fake_service
from tests.support.processes import without

WRITE = """
import sys
try:
    open(sys.argv[1], "wb").write(bytes(100_000))
    print("written")
except OSError as error:
    print(error.errno)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    try:
        with small_disk(tmp_path / "disk", 8 * MEGABYTE) as mounted:
            yield mounted
    except NotPossible as lacking:
        without(str(lacking))


def within(disk: SmallDisk, name: str) -> str:
    """What a write of 100 kB there comes to."""
    command = disk.within([sys.executable, "-c", WRITE, str(disk.at / name)])
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_small_disk_is_full_has_room_again_and_is_seen_by_nobody_else(disk: SmallDisk) -> None:
    disk.fill()
    assert within(disk, "one") == str(errno.ENOSPC)
    disk.fill(leave_bytes=50_000)
    assert within(disk, "two") == str(errno.ENOSPC)
    disk.free()
    assert within(disk, "three") == "written"
    assert (disk.seen / "three").stat().st_size == 100_000
    assert list(disk.at.iterdir()) == []


@pytest.mark.slow
def test_a_sweep_whose_disk_fills_names_resume_and_is_whole_by_it(disk: SmallDisk, tmp_path: Path) -> None:
    with fake_service(Script(service_seconds=0.005)) as url:
        assert sweep_amiss(disk, tmp_path, [f"--url={url}"]) == ""


def samples(resident: list[float], descriptors: list[float]) -> list[Sample]:
    """One per ten seconds, of one process."""
    pairs = zip(resident, descriptors, strict=True)
    return [Sample(10.0 * number, {"engine": r}, {"descriptors": d}) for number, (r, d) in enumerate(pairs)]


def test_a_soak_is_judged_by_what_is_held_after_it_has_settled_and_not_where_it_was_too_short() -> None:
    level = judge(samples([50, 90, 100, 102, 105, 99, 104, 102, 100], [9, 8, 7, 8, 6, 9, 7, 7, 8]), 20.0)
    assert level.growth == {"engine": 1.0}
    assert level.grown == {}
    grown = judge(samples([100.0 + n for n in range(9)], [float(n) for n in range(9)]), 0.0)
    assert grown.growth["engine"] == pytest.approx(107 / 101)
    assert grown.grown == {"descriptors": (2.0, 8.0)}
    with pytest.raises(ValueError, match="soak for longer"):
        judge(samples([1.0] * 9, [1.0] * 9), 50.0)
