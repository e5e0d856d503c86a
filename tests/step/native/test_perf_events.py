"""What the ring of samples holds: addresses in order, the system's own as one, and a loss that is noticed."""

from __future__ import annotations

import struct

import pytest

from service.step.native import perf_events
from service.step.native.perf_events import IN_SYSTEM, AddressSampler, PerfError

PAGE = 4096
SIZE = perf_events._RING_PAGES * PAGE


def sample(address: int, mode: int = 2) -> bytes:
    return struct.pack("<IHHQ", 9, mode, 16, address)


def lost(count: int) -> bytes:
    return struct.pack("<IHHQQ", 2, 0, 24, 0, count)


def taken(records: bytes, tail: int = 0) -> list[int]:
    """What a sampler takes from a ring that holds `records` from byte `tail` on."""
    ring = bytearray(PAGE + SIZE)
    for offset, byte in enumerate(records):
        ring[PAGE + (tail + offset) % SIZE] = byte
    struct.pack_into("<QQ", ring, 1024, tail + len(records), tail)
    made = AddressSampler.__new__(AddressSampler)
    made._ring, made._page = ring, PAGE  # type: ignore[assignment]
    found = made._take()
    assert struct.unpack_from("<Q", ring, 1032)[0] == tail + len(records)
    return found


def test_addresses_come_in_order_and_the_systems_own_are_one() -> None:
    assert taken(sample(7) + sample(8, mode=1) + sample(9)) == [7, IN_SYSTEM, 9]


def test_records_that_wrap_around_the_ring_are_whole() -> None:
    assert taken(sample(7) + sample(8), tail=SIZE - 24) == [7, 8]


def test_a_loss_within_the_block_is_an_error() -> None:
    with pytest.raises(PerfError, match="lost"):
        taken(sample(7) + lost(3) + sample(8))


def test_a_full_ring_is_an_error_although_the_system_has_not_reported_the_loss_yet() -> None:
    with pytest.raises(PerfError, match="lost"):
        taken(sample(7) * (SIZE // 16))


def test_a_loss_reported_first_is_of_the_block_before() -> None:
    assert taken(lost(3) + sample(8)) == [8]
