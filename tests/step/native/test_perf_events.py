"""What the ring of samples holds: addresses in order, the system's own as one, and a loss that is noticed."""

from __future__ import annotations

import struct

import pytest

from service.step.native import perf_events
from service.step.native.perf_events import IN_SYSTEM, AddressSampler, PerfError, Samples

PAGE = 4096
SIZE = perf_events._RING_PAGES * PAGE


def sample(address: int, mode: int = 2, time_ns: int = 0) -> bytes:
    return struct.pack("<IHHQQ", 9, mode, 24, address, time_ns)


def lost(count: int) -> bytes:
    return struct.pack("<IHHQQ", 2, 0, 24, 0, count)


class MadeSampler(AddressSampler):
    """On a ring that a test writes, without an event."""

    def __init__(self, tail: int = 0) -> None:
        self._ring = bytearray(PAGE + SIZE)  # type: ignore[assignment]
        self._page = PAGE
        self._event = -1
        self._records: list[bytes] = []
        self._head = tail
        struct.pack_into("<QQ", self._ring, 1024, tail, tail)

    def write(self, records: bytes) -> None:
        for offset, byte in enumerate(records):
            self._ring[PAGE + (self._head + offset) % SIZE] = byte
        self._head += len(records)
        struct.pack_into("<Q", self._ring, 1024, self._head)


@pytest.fixture(autouse=True)
def no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perf_events.fcntl, "ioctl", lambda *_: 0)


def sampled(*blocks: bytes, tail: int = 0) -> Samples:
    """What a sampler takes from a ring to which `blocks` are written, and which is drained after each."""
    sampler = MadeSampler(tail)
    found = Samples()
    sampler.start()
    for records in blocks[:-1]:
        sampler.write(records)
        sampler.drain()
    sampler.write(blocks[-1])
    sampler.stop(found)
    assert struct.unpack_from("<QQ", sampler._ring, 1024) == (sampler._head, sampler._head)
    return found


def taken(*blocks: bytes, tail: int = 0) -> list[int]:
    return [int(address) for address in sampled(*blocks, tail=tail).addresses]


def test_addresses_come_in_order_and_the_systems_own_are_one() -> None:
    assert taken(sample(7) + sample(8, mode=1) + sample(9)) == [7, IN_SYSTEM, 9]


def test_records_that_wrap_around_the_ring_are_whole() -> None:
    assert taken(sample(7) + sample(8), tail=SIZE - 36) == [7, 8]


def test_a_loss_within_the_block_is_an_error() -> None:
    with pytest.raises(PerfError, match="lost"):
        taken(sample(7) + lost(3) + sample(8))


def test_a_full_ring_is_an_error_although_the_system_has_not_reported_the_loss_yet() -> None:
    with pytest.raises(PerfError, match="lost"):
        taken(sample(7) * (SIZE // 24))


def test_a_loss_reported_first_is_of_the_block_before() -> None:
    assert taken(lost(3) + sample(8)) == [8]


def test_a_sample_has_its_instant() -> None:
    found = sampled(sample(7, time_ns=40) + sample(8, time_ns=50))
    assert found.times_ns.tolist() == [40, 50]


def test_what_is_drained_meanwhile_stays_in_order_and_is_not_lost() -> None:
    full = sample(7) * (SIZE // 24 - 10)
    assert taken(full, full, sample(9)) == [7] * (2 * (SIZE // 24 - 10)) + [9]


def test_what_is_no_sample_is_passed_over() -> None:
    throttled = struct.pack("<IHHQQQ", 5, 0, 32, 0, 0, 0)
    assert taken(sample(7) + throttled + sample(8)) == [7, 8]


def test_a_block_without_samples_is_empty() -> None:
    assert taken(b"") == []


def test_a_second_block_holds_nothing_of_the_first() -> None:
    sampler, first, second = MadeSampler(), Samples(), Samples()
    sampler.start()
    sampler.write(sample(7))
    sampler.stop(first)
    sampler.start()
    sampler.write(sample(8))
    sampler.stop(second)
    assert second.addresses.tolist() == [8]
