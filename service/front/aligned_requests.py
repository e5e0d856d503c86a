"""Rounds out of served requests: those of all modes that did the same work at about the same time."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from statistics import median

from service.protocol.messages import Job

WINDOW_SECONDS = 120.0
"""Requests of one round end within this time of each other, so that they met about the same machine."""


@dataclass(frozen=True, slots=True)
class Work:
    """What requests have in common whose durations can be compared whole.

    `prompt_tokens` are those per row that prefill computed, padding included; `steps` the decode steps.
    `options` is what else takes time between two steps, in words (`options_of`).
    """

    bucket: int
    prompt_tokens: int
    steps: int
    options: str

    @property
    def name(self) -> str:
        """'32 tokens after 64 of padded prompt, greedy'."""
        return f"{self.steps + 1} tokens after {self.prompt_tokens} of padded prompt, {self.options}"


def options_of(job: Job) -> str:
    """How `job` chooses, ends and sends its tokens: 'sampled, top-k, streamed'."""
    samples = job.temperature > 0
    chosen = {
        "top-k": samples and job.top_k is not None,
        "top-p": samples and job.top_p is not None,
        "stop strings": bool(job.stop),
        "streamed": job.stream,
    }
    return ", ".join(
        ["sampled" if samples else "greedy", *(name for name, is_set in chosen.items() if is_set)]
    )


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """When a request ended, in seconds on a monotonic clock, and how long it took without its queue."""

    mode: str
    ended_seconds: float
    seconds: float


def aligned_rounds(requests: Iterable[ServedRequest], modes: Collection[str]) -> dict[str, dict[int, float]]:
    """By mode and round, the median seconds of `requests`, which come in the order of their ends.

    A round is the shortest stretch since the last one in which every mode ended a request, all within
    WINDOW_SECONDS; older ones are dropped. So modes that took turns make many rounds, and modes that ran
    one after the other, in the drift of hours, at most one.
    """
    rounds: dict[str, dict[int, float]] = {mode: {} for mode in modes}
    window = deque[ServedRequest]()
    present = Counter[str]()
    number = 0
    for request in requests:
        if request.mode not in rounds:
            continue
        window.append(request)
        present[request.mode] += 1
        while request.ended_seconds - window[0].ended_seconds > WINDOW_SECONDS:
            present[window.popleft().mode] -= 1
        if all(present[mode] for mode in modes):
            number += 1
            for mode in modes:
                rounds[mode][number] = median(one.seconds for one in window if one.mode == mode)
            window.clear()
            present.clear()
    return rounds
