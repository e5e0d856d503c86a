"""A node of Ray that does not start in time is ended and tried again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from service.replicas.patience import TRIES, TooBusy, patiently

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
TOO_LATE = "The current node timed out during startup. This could happen because of something."


class Node:
    """Starts a process each time, and is too late the first `late` times."""

    def __init__(self, late: int) -> None:
        self.late = late
        self.started: list[subprocess.Popen[bytes]] = []

    def __call__(self) -> int:
        self.started.append(subprocess.Popen(SLEEP))
        if len(self.started) <= self.late:
            raise Exception(TOO_LATE)
        return len(self.started)

    @property
    def running(self) -> list[bool]:
        """Of each process, whether it has not ended."""
        return [process.poll() is None for process in self.started]


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is there before."""
    with subprocess.Popen(SLEEP) as process:
        yield process
        process.kill()


def test_a_late_node_is_ended_and_the_next_one_kept(other: subprocess.Popen[bytes]) -> None:
    node = Node(late=2)
    assert patiently(node) == 3
    assert node.running == [False, False, True]
    assert other.poll() is None
    node.started[-1].kill()
    node.started[-1].wait()


def test_there_is_an_end_to_patience() -> None:
    node = Node(late=TRIES)
    with pytest.raises(TooBusy, match="the machine is too busy"):
        patiently(node)
    assert node.running == [False] * TRIES


def test_another_error_is_not_tried_again() -> None:
    tries = list[int]()

    def start() -> None:
        tries.append(1)
        raise ValueError("no such address")

    with pytest.raises(ValueError, match="no such address"):
        patiently(start)
    assert len(tries) == 1
