"""The sampler and the counter of instructions: where the thread is, and what it runs."""

from __future__ import annotations

import gc
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import pytest
import torch

from service.measure import cpu_sampler
from service.measure.cpu_sampler import (
    CpuSampler,
    InstructionCounter,
    Instructions,
    Place,
    Places,
    SamplerError,
    counts_of,
    sample_steps,
)

WORK_SECONDS = 0.3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("library")


@pytest.fixture(scope="module")
def sampler(folder: Path) -> CpuSampler:
    return CpuSampler(folder)


def spin(seconds: float = WORK_SECONDS) -> None:
    ends = perf_counter() + seconds
    while perf_counter() < ends:
        pass


def multiply(seconds: float = WORK_SECONDS) -> None:
    values, ends = torch.ones(200, 200), perf_counter() + seconds
    while perf_counter() < ends:
        values @ values


def kernel_share(places: list[Place]) -> float:
    counts = counts_of(places)
    return counts.kernel / (counts.kernel + counts.host)


def test_python_is_host_and_a_matrix_product_kernel(sampler: CpuSampler) -> None:
    with sampler.recording() as python:
        spin()
    with sampler.recording() as product:
        multiply()
    counts = counts_of(python)
    assert counts.host > 20 * (counts.kernel + counts.unclassified)
    assert kernel_share(product) > 0.8


def test_each_sample_carries_what_the_thread_said_it_does(sampler: CpuSampler) -> None:
    sampler.take()
    sampler.start()
    for label in (3, 0, 7):
        sampler.label.value = label
        spin()
    sampler.label.value = 0
    sampler.stop()
    labels = [label for label, _ in sampler.take()]
    assert set(labels) == {3, 7}
    assert labels == sorted(labels)


def test_nothing_is_sampled_while_it_is_stopped_or_paused(sampler: CpuSampler) -> None:
    with sampler.recording() as recorded, sampler.paused():
        spin()
    assert len(recorded) < 5  # of 300: the lines between the two statements are sampled
    sampler.label.value = 1
    spin()
    sampler.label.value = 0
    assert sampler.take() == []


def test_work_shorter_than_the_distance_of_samples_is_sampled_all_the_same(sampler: CpuSampler) -> None:
    sampler.take()
    for _ in range(200):
        sampler.label.value = 1
        sampler.start(samples_per_second=100)
        spin(0.001)
        sampler.stop()
        sampler.label.value = 0
    assert len(sampler.take()) > 5


def test_a_full_ring_says_that_samples_were_lost(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_sampler, "CAPACITY", 4)
    small = CpuSampler(folder)
    with pytest.raises(SamplerError, match="lost"), small.recording():
        spin()
    assert sample_steps(small, lambda: spin(0.01), "decode", 0.01, WORK_SECONDS) is None
    small.close()


def test_samples_are_of_the_thread_that_made_the_sampler(folder: Path) -> None:
    found: list[int] = []

    def other() -> None:
        own = CpuSampler(folder)
        with own.recording() as recorded:
            spin()
        found.append(counts_of(recorded).host)
        own.close()

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert found[0] > 0


def test_a_signal_that_somebody_else_handles_is_left_to_him(folder: Path) -> None:
    number = signal.SIGRTMAX - 3
    code = (
        f"import signal, sys; signal.signal({number}, lambda *_: None)\n"
        "from pathlib import Path\n"
        "from service.measure.cpu_sampler import CpuSampler, SamplerError\n"
        f"try: CpuSampler(Path({str(folder)!r}))\n"
        "except SamplerError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "another library in this process handles the signal" in said


def test_without_a_compiler_the_reason_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_sampler, "_loaded", [])
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    with pytest.raises(SamplerError, match=r"install g\+\+"):
        CpuSampler(tmp_path)


FORBID = r"""
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
extern "C" int forbid_perf_events() {
  sock_filter code[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_perf_event_open, 0, 1),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 1),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program = {4, code};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) return 1;
  return syscall(SYS_perf_event_open, 0, 0, 0, 0, 0) == -1 ? 0 : 2;
}
"""


def test_it_samples_where_a_container_forbids_perf_event_open(folder: Path) -> None:
    code = (
        "import ctypes, sys\nfrom pathlib import Path\n"
        "from service.measure.compiled_library import compiled_library\n"
        f"library = compiled_library(Path({str(folder)!r}), 'forbid', {FORBID!r})\n"
        "assert ctypes.CDLL(str(library)).forbid_perf_events() == 0\n"
        "from tests.measure.test_cpu_sampler import *\n"
        f"sampler = CpuSampler(Path({str(folder)!r}))\n"
        "with sampler.recording() as product: multiply()\n"
        "with sampler.recording() as python: spin()\n"
        "assert kernel_share(product) > 0.8 and kernel_share(python) < 0.05"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_place_is_forgotten_where_no_code_lies_any_longer() -> None:
    places = Places()
    (gone,) = places.of([16])
    assert (gone.side, gone.symbol) == ("unclassified", "[unknown]")
    assert counts_of(places.of([0, 0])).system == 2


@pytest.mark.skipif(
    os.environ.get("REQUIRE_ALL") != "1" and not shutil.which("aarch64-linux-gnu-g++"),
    reason="needs a cross compiler (Debian: apt-get install g++-aarch64-linux-gnu)",
)
def test_it_builds_for_aarch64(tmp_path: Path) -> None:
    source = Path(cpu_sampler.__file__).with_suffix(".cpp")
    made = tmp_path / "sampler.so"
    options = ["-std=c++20", "-Wall", "-Werror", "-shared", "-fPIC"]
    subprocess.run(["aarch64-linux-gnu-g++", *options, str(source), "-o", str(made)], check=True)
    assert made.read_bytes()[18] == 183  # EM_AARCH64


# Counts of instructions: they grow with what is run and with nothing else


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> InstructionCounter:
    return InstructionCounter(tmp_path_factory.mktemp("library"))


def test_a_tensor_twice_as_long_takes_twice_the_instructions_in_kernels_and_none_more_on_the_host(
    counter: InstructionCounter,
) -> None:
    def doubled(length: int) -> Instructions:
        values = torch.ones(length)
        return counter.count_settled(lambda: values.mul_(2.0))

    once, twice, four_times = (doubled(length) for length in (2**12, 2**13, 2**14))
    grown = four_times.of("kernel") - twice.of("kernel")
    assert grown == pytest.approx(2 * (twice.of("kernel") - once.of("kernel")), rel=0.02)
    assert grown > 2**13 / 16  # a vector of AVX-512 holds sixteen; longer tensors take a second thread
    assert four_times.of("host") == pytest.approx(twice.of("host"), rel=0.05)


@pytest.mark.parametrize("collecting", [True, False])
def test_an_error_in_what_is_counted_ends_the_counting_and_leaves_the_process_as_it_was(
    counter: InstructionCounter, collecting: bool
) -> None:
    handler = signal.getsignal(signal.SIGTRAP)
    try:
        if not collecting:
            gc.disable()
        with pytest.raises(ZeroDivisionError):
            counter.count(lambda: 1 / 0)
        assert gc.isenabled() == collecting
    finally:
        gc.enable()
    assert signal.getsignal(signal.SIGTRAP) == handler
    assert counter.count(lambda: None).of("host") < 500


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda patch: patch.setattr(InstructionCounter, "_counted", lambda *_: Counter()), "does not stop"),
        (lambda patch: patch.setattr(platform, "machine", lambda: "aarch64"), "x86_64 only"),
        (lambda patch: patch.setenv("CXX", "no-such-compiler"), r"install g\+\+, or set CXX"),
    ],
    ids=["the trap flag is ignored", "another processor", "no compiler"],
)
def test_where_instructions_cannot_be_counted_the_reason_is_given(
    spoil: Callable[[pytest.MonkeyPatch], None], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spoil(monkeypatch)
    with pytest.raises(SamplerError, match=said):
        InstructionCounter(tmp_path)
