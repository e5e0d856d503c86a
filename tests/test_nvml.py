"""What is read of a GPU, by a package that stands in for NVIDIA's."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from service import nvml
from service.modes import default_modes, swept_modes
from tests.support import fake_nvml


@pytest.fixture(autouse=True)
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml)


def refuse(*arguments: Any) -> None:
    raise fake_nvml.NVMLError_NotSupported("Not Supported")


def sample() -> dict[str, str]:
    with nvml.opened() as library:
        (gpu,) = nvml.handles(library)
        return nvml.sampled(library, gpu)


def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    nvml.main([])
    return json.loads(capsys.readouterr().out)


def test_a_gpu_is_read_in_the_units_that_are_stated(capsys: pytest.CaptureFixture[str]) -> None:
    found = sample()
    assert found.keys() == set(nvml.COLUMNS)
    assert [found[name] for name in nvml.NUMBERS] == ["1980", "2619", "310.5", "41", "97"]
    assert (found["reasons"], found["mig"]) == ("0x24", "0")
    assert float(sample()["energy"]) == float(found["energy"]) + 250
    assert printed(capsys) == [
        {
            "name": "NVIDIA H100 80GB HBM3",
            "driver_version": "580.159.04",
            "clocks.sm": "1980 MHz",
            "clocks.max.sm": "1980 MHz",
            "clocks.mem": "2619 MHz",
            "power.limit": "700.00 W",
            "persistence_mode": "Enabled",
        }
    ]


def test_in_mig_mode_it_is_said_whose_the_numbers_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fake_nvml, "nvmlDeviceGetMigMode", lambda handle: [1, 1])
    assert sample()["mig"] == "1"
    assert printed(capsys)[0]["note"] == nvml.MIG_NOTE


def test_what_is_not_supported_is_absent_and_the_rest_is_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (
        "nvmlDeviceGetTotalEnergyConsumption",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetPersistenceMode",
    ):
        monkeypatch.setattr(fake_nvml, name, refuse)
    found = sample()
    assert (found["energy"], found["mig"], found["power.draw"]) == ("", "", "310.5")
    (described,) = printed(capsys)
    assert "persistence_mode" not in described
    assert described["power.limit"] == "700.00 W"


def unknown_library(*arguments: Any) -> None:
    raise fake_nvml.NVMLError("NVML Shared Library Not Found")


@pytest.mark.parametrize(
    ("name", "found", "said"),
    [
        ("nvmlInit", unknown_library, "NVML does not answer: NVML Shared Library Not Found"),
        ("nvmlDeviceGetCount", refuse, "NVML does not answer: Not Supported"),
        ("nvmlDeviceGetCount", lambda: 0, "NVML sees no GPU"),
    ],
)
def test_without_a_driver_or_a_gpu_a_sentence_says_so(
    monkeypatch: pytest.MonkeyPatch, name: str, found: Any, said: str
) -> None:
    monkeypatch.setattr(fake_nvml, name, found)
    for arguments in ([], [nvml.SAMPLE]):
        with pytest.raises(SystemExit) as ended:
            nvml.main(arguments)
        assert ended.value.code == said


@pytest.mark.parametrize(
    ("requested", "torch", "gpus", "expected"),
    [
        ("auto", "2.13.0", 1, "cuda"),
        ("auto", "2.13.0", 0, "cpu"),
        ("auto", "2.13.0+cpu", 1, "cpu"),
        ("cuda:1", "2.13.0", 0, "cuda"),
        ("cpu", "2.13.0", 1, "cpu"),
    ],
)
def test_what_an_engine_will_run_on_decides_which_modes_a_sweep_adds(
    monkeypatch: pytest.MonkeyPatch, requested: str, torch: str, gpus: int, expected: str
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: torch)
    monkeypatch.setattr(fake_nvml, "nvmlDeviceGetCount", lambda: gpus)
    assert nvml.expected_device(requested) == expected
    added = {"cpu": ["aot-inductor"], "cuda": ["compiled-captured"]}[expected]
    assert [name for name in swept_modes(expected) if name not in default_modes()] == added
