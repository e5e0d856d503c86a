"""What waits for the engine, as the scheduler needs it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from service.protocol.messages import Begun, Job, Token


class Queue(Protocol):
    """Jobs and other messages, in order of arrival."""

    @property
    def stopped(self) -> bool:
        """Whether nothing is to begin any more."""

    @property
    def idle(self) -> bool:
        """Whether nothing waits."""

    @property
    def depth(self) -> int:
        """How many messages wait; 0 where it is idle."""

    @property
    def next_job(self) -> Job | None:
        """The first that waits, if that is a job."""

    def waiting_jobs(self) -> Iterator[Job]:
        """Those that wait, in order, up to the first message that is no job; they stay where they are."""

    def receive(self, timeout_milliseconds: int = 0) -> None:
        """Receive what has arrived, waiting so long for a first message."""

    def join(self) -> Job:
        """Take `next_job`."""

    def left(self, job: Job) -> None:
        """A job has ended."""

    def is_cancelled(self, job: Job) -> bool:
        """Whether a job that waits or runs is cancelled."""

    def send(self, message: Begun | Token) -> None:
        """Tell the front."""
