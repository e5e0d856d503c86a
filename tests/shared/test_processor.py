"""How a processor is called: generations of one name stay apart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from service import machine
from service.machine import processor_facts, processor_features, processor_name, siblings

EPYC = """\
processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: {family}
model\t\t: {model}
model name\t: AMD EPYC
stepping\t: 1

processor\t: 1
model name\t: another
"""
ARM = "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n"


@pytest.fixture(autouse=True)
def read_anew() -> Iterator[None]:
    processor_facts.cache_clear()
    yield
    processor_facts.cache_clear()


def named(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name where /proc/cpuinfo is `text`."""
    file = folder / "cpuinfo"
    file.write_text(text)
    monkeypatch.setattr(machine, "_CPUINFO", file)
    processor_facts.cache_clear()
    return processor_name()


def test_two_generations_of_one_name_have_two_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zen4 = named(EPYC.format(family=25, model=17), tmp_path, monkeypatch)
    zen5 = named(EPYC.format(family=26, model=2), tmp_path, monkeypatch)
    assert (zen4, zen5) == ("AMD EPYC (family 25, model 17)", "AMD EPYC (family 26, model 2)")


def test_a_processor_without_a_name_is_named_by_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.processor", lambda: "")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert named(ARM, tmp_path, monkeypatch) == "unknown CPU (aarch64) (implementer 0x41, part 0xd4f)"


def test_a_system_that_says_nothing_has_a_name_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_CPUINFO", tmp_path / "none")
    monkeypatch.setattr("platform.processor", lambda: "")
    assert processor_name().startswith("unknown CPU")
    assert processor_features() is None


@pytest.mark.parametrize(
    ("flags", "features"),
    [("fpu avx2 avx512f sse4_2", "avx2, avx512f, "), ("fpu avx2 sse4_2", "avx2, "), ("fpu sse4_2", "")],
)
def test_what_a_hypervisor_hides_of_one_processor_shows_in_its_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, features: str
) -> None:
    seen = set()
    for hidden in ("", " ht"):
        named(f"model name\t: Xeon\nstepping\t: 7\nflags\t: {flags}{hidden}\n", tmp_path, monkeypatch)
        found = processor_features()
        assert found is not None
        assert found.startswith(f"stepping 7, {features}")
        seen.add(found)
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("text", "found"),
    [("1\n", (1,)), ("0-1\n", (0, 1)), ("1,5\n", (1, 5)), ("0-1,8-9\n", (0, 1, 8, 9)), (None, (1,))],
)
def test_the_hardware_threads_of_a_core_are_as_linux_lists_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, found: tuple[int, ...]
) -> None:
    if text is not None:
        (tmp_path / "cpu1").write_text(text)
    monkeypatch.setattr(machine, "_SIBLINGS", f"{tmp_path}/cpu{{}}")
    assert siblings(1) == found
