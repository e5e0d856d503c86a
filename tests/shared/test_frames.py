"""Frames arrive whole and in order, whatever their sizes and however the socket cuts them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.frames import CHUNK_BYTES, LENGTH_BYTES, FrameStream, accept, connect, listen

Pair = tuple[FrameStream, FrameStream]


def connected() -> Pair:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return FrameStream(one), FrameStream(other)


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = connected()
    yield one, other
    one.close()
    other.close()


def receive(stream: FrameStream, count: int) -> list[bytes]:
    """`count` frames."""
    found: list[bytes] = []
    while len(found) < count:
        assert stream.wait(10_000)
        found += stream.receive()
    return found


SIZES = st.sampled_from([0, 1, 3, 4, 100, CHUNK_BYTES - LENGTH_BYTES, CHUNK_BYTES, 300_000])


@settings(max_examples=50)
@given(sizes=st.lists(SIZES, max_size=8))
def test_frames_of_any_size_arrive_whole_and_in_order(sizes: list[int]) -> None:
    sender, receiver = connected()
    frames = [bytes([number]) * size for number, size in enumerate(sizes)]
    for frame in frames:
        sender.send(frame)
    received: list[bytes] = []
    while len(received) < len(frames):
        sender.flush()
        assert receiver.wait(10_000)
        received += receiver.receive()
    assert received == frames
    assert not sender.unsent
    sender.close()
    receiver.close()


def test_a_frame_that_arrives_byte_by_byte_is_received_once_it_is_whole() -> None:
    raw, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    receiver = FrameStream(other)
    data = (5).to_bytes(LENGTH_BYTES, "little") + b"hello"
    for byte in data[:-1]:
        raw.send(bytes([byte]))
        assert receiver.receive() == []
    raw.send(data[-1:] + (1).to_bytes(LENGTH_BYTES, "little"))
    assert receiver.receive() == [b"hello"]
    raw.send(b"x")
    assert receiver.receive() == [b"x"]
    raw.close()
    receiver.close()


def test_what_the_peer_does_not_take_is_kept_and_leaves_while_waiting(pair: Pair) -> None:
    sender, receiver = pair
    frame = b"x" * 2_000_000
    sender.send(frame)
    sender.send(b"last")
    assert sender.unsent
    receiver.send(b"answer")
    assert sender.wait(10_000)  # an arrival ends the wait, although something is still kept
    assert sender.receive() == [b"answer"]
    received: list[bytes] = []
    while len(received) < 2:
        sender.wait(1)
        received += receiver.receive()
    assert received == [frame, b"last"]
    assert not sender.unsent


def test_the_end_comes_after_the_last_frame(pair: Pair) -> None:
    pair[0].send(b"last")
    pair[0].close()
    assert receive(pair[1], 1) == [b"last"]
    with pytest.raises(EOFError):
        pair[1].receive()
    with pytest.raises(ConnectionError):
        pair[1].send(b"too late")


def test_closing_lingers_until_the_peer_has_taken_everything_or_the_time_is_over() -> None:
    sender, receiver = connected()
    sender.send(b"x" * 2_000_000)
    sender.close(linger_seconds=0.01)
    with pytest.raises(EOFError):
        receive(receiver, 1)  # the rest of the frame was dropped
    receiver.close()


def test_an_address_that_nobody_listens_at_or_that_is_taken_is_an_error(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with pytest.raises(ConnectionRefusedError):
        connect(path)
    listener = listen(path)
    with pytest.raises(OSError, match="in use"):
        listen(path)
    stream = connect(path)
    stream.close()
    listener.close()


def test_another_user_at_the_other_end_is_no_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address, own = str(tmp_path / "s"), os.geteuid()
    listener = listen(address)
    stranger, peer = connect(address), connect(address)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(os, "geteuid", lambda: own + 1)
        assert accept(listener) is None
        with pytest.raises(PermissionError, match="another user"):
            connect(address)
    accepted = accept(listener)
    assert accepted is not None
    for end in (stranger, peer, accepted):
        end.close()
    listener.close()
