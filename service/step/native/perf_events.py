"""Samples the calling thread by `perf_event_open(2)`: where it is, some thousand times a second."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from time import CLOCK_MONOTONIC

import numpy as np

SAMPLES_PER_SECOND = 4999
"""Of CPU time. A prime, so that samples do not keep step with anything."""

_RING_PAGES = 128
_SYSTEM_CALL = {"x86_64": 298, "aarch64": 241}
_TYPE_SOFTWARE, _CPU_CLOCK = 1, 0
_SAMPLE_ADDRESS, _SAMPLE_TIME = 1, 4
_DISABLED, _EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR = 1 << 0, 1 << 5, 1 << 6
_USE_CLOCK_ID = 1 << 25
_ENABLE, _DISABLE = 0x2400, 0x2401
_HEAD_AT, _TAIL_AT = 1024, 1032
_RECORD_SAMPLE, _RECORD_LOST = 9, 2
_MODE_MASK, _MODE_KERNEL = 7, 1
_LARGEST_RECORD = 64
"""Bytes; with less room than that left, the ring may have been full."""

_LOST = "samples were lost: sample for a shorter time"
_HEADER = struct.Struct("<IHH")
_WORD = struct.Struct("<Q")
_SAMPLE = np.dtype([("kind", "<u4"), ("mode", "<u2"), ("size", "<u2"), ("address", "<u8"), ("time", "<u8")])
_ATTRIBUTES = struct.Struct("<IIQQQQQIIQQQQIiQIHH")
"""`struct perf_event_attr` up to its fifth version, the first with a clock of one's own."""

IN_SYSTEM = 0
"""Stands for every address inside the operating system."""


class Samples:
    """What a block sampled, in order: `addresses` uint64 [n], and `times_ns` int64 [n], instants of
    `perf_counter_ns`. Empty until the block has ended.
    """

    def __init__(self) -> None:
        self.addresses = np.zeros(0, np.uint64)
        self.times_ns = np.zeros(0, np.int64)


class PerfError(RuntimeError):
    """Sampling is impossible here; the message has the reason and, where there is one, the remedy."""


class AddressSampler:
    """Samples the thread that made it. Raises PerfError where the system does not allow that."""

    def __init__(self, samples_per_second: int = SAMPLES_PER_SECOND) -> None:
        self.sees_system = True
        try:
            self._event = _open(samples_per_second, _EXCLUDE_HYPERVISOR)
        except PermissionError:
            # Without privileges a thread may still sample its own code outside the operating system.
            self.sees_system = False
            self._event = _open_own(samples_per_second)
        page = mmap.PAGESIZE
        try:
            self._ring = mmap.mmap(self._event, (1 + _RING_PAGES) * page)
        except OSError as error:
            os.close(self._event)
            raise PerfError(f"no memory for samples ({error}): raise kernel.perf_event_mlock_kb") from error
        self._page = page
        self._records: list[bytes] = []

    def start(self) -> None:
        """Sample this thread from now on."""
        self._records.clear()
        fcntl.ioctl(self._event, _ENABLE, 0)

    def drain(self) -> None:
        """Make room, between `start` and `stop`: the ring holds the samples of some seconds of CPU time."""
        self._records.append(self._take())

    def stop(self, into: Samples) -> None:
        """Sample no more, and put what was sampled since `start` into `into`.

        Raises PerfError where it was so long, or not drained for so long, that samples were lost.
        """
        fcntl.ioctl(self._event, _DISABLE, 0)
        self.drain()
        table = _table(b"".join(self._records))
        in_system = table["mode"] & _MODE_MASK == _MODE_KERNEL
        into.addresses = np.where(in_system, np.uint64(IN_SYSTEM), table["address"])
        into.times_ns = table["time"].astype(np.int64)

    @contextmanager
    def sampling(self) -> Iterator[Samples]:
        """Within: this thread is sampled. Raises PerfError as `stop` does."""
        found = Samples()
        self.start()
        try:
            yield found
        finally:
            self.stop(found)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within, inside of `sampling`: no sample is taken, and the time until the next one stands."""
        fcntl.ioctl(self._event, _DISABLE, 0)
        try:
            yield
        finally:
            fcntl.ioctl(self._event, _ENABLE, 0)

    def close(self) -> None:
        """Free the event and its memory."""
        self._ring.close()
        os.close(self._event)

    def _take(self) -> bytes:
        """The records that the ring holds, as they lie there; it is empty afterwards."""
        (head,) = _WORD.unpack_from(self._ring, _HEAD_AT)
        (tail,) = _WORD.unpack_from(self._ring, _TAIL_AT)
        size = _RING_PAGES * self._page
        begin, length = tail % size, head - tail
        until_the_end = min(length, size - begin)
        records = self._ring[self._page + begin : self._page + begin + until_the_end]
        records += self._ring[self._page : self._page + length - until_the_end]
        _WORD.pack_into(self._ring, _TAIL_AT, head)
        if size - length < _LARGEST_RECORD:
            # The system reports a loss only with the next sample, which would be of the next block.
            raise PerfError(_LOST)
        return bytes(records)


def _table(records: bytes) -> np.ndarray:
    """The samples among `records`. Raises PerfError for a loss."""
    if len(records) % _SAMPLE.itemsize == 0:
        table = np.frombuffer(records, _SAMPLE)
        if np.all(table["kind"] == _RECORD_SAMPLE) and np.all(table["size"] == _SAMPLE.itemsize):
            return table  # nearly always: nothing but samples
    return np.frombuffer(b"".join(_samples(records)), _SAMPLE)


def _samples(records: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(records):
        kind, _, size = _HEADER.unpack_from(records, at)
        if kind == _RECORD_LOST and at > 0:  # the first one is of the block before, which has raised
            raise PerfError(_LOST)
        if kind == _RECORD_SAMPLE:
            yield records[at : at + size]
        at += size


def _open_own(samples_per_second: int) -> int:
    try:
        return _open(samples_per_second, _EXCLUDE_HYPERVISOR | _EXCLUDE_KERNEL)
    except PermissionError as error:
        raise PerfError(
            "the system forbids a process to sample itself: set the sysctl kernel.perf_event_paranoid to 2 or"
            " less, and in a container allow perf_event_open (CAP_PERFMON)"
        ) from error


def _open(samples_per_second: int, flags: int) -> int:
    """A disabled event on the calling thread, on whatever core it runs. Raises PermissionError, PerfError."""
    number = _SYSTEM_CALL.get(platform.machine())
    if number is None or platform.system() != "Linux":
        raise PerfError(f"native stacks are sampled on Linux only, not on {platform.platform()}")
    attributes = _ATTRIBUTES.pack(
        _TYPE_SOFTWARE,
        _ATTRIBUTES.size,
        _CPU_CLOCK,
        # A period in ns: where interrupts are slow, systems lower the frequency that they grant.
        round(1e9 / samples_per_second),
        _SAMPLE_ADDRESS | _SAMPLE_TIME,
        0,
        _DISABLED | _USE_CLOCK_ID | flags,
        *[0] * 7,
        CLOCK_MONOTONIC,  # that of perf_counter_ns
        *[0] * 4,
    )
    library = ctypes.CDLL(None, use_errno=True)
    event: int = library.syscall(number, attributes, 0, -1, -1, 8)  # 8: closed where another program starts
    if event < 0:
        code = ctypes.get_errno()
        if code in (errno.EACCES, errno.EPERM):
            raise PermissionError(code, os.strerror(code))
        raise PerfError(f"perf_event_open failed: {os.strerror(code)}")
    return event
