"""How a report speaks of what was measured, by workload: prompts that are completed, or calls of a module."""

from __future__ import annotations

from dataclasses import dataclass

from service.workloads import WorkloadName


@dataclass(frozen=True, slots=True)
class Words:
    """`timed` is what a compared time is of, `seconds` its column, and `unit` what the throughput counts.

    `main` stands for the phase whose kernel share is the headline. `compared` says what modes are compared
    by where that is not a request's latency, and `absent` what a report lacks; empty: nothing.
    """

    timed: str
    latency: str
    latency_per: str
    seconds: str
    unit: str
    batch: str
    main: str
    changes: str
    seeded: str
    parity: str
    difference: str
    compared: str = ""
    absent: str = ""

    @property
    def rate(self) -> str:
        """The column of the throughput."""
        return f"{self.unit}_per_second"

    @property
    def has_tokens(self) -> bool:
        return self.unit == "tokens"


WORDS: dict[WorkloadName, Words] = {
    "generate": Words(
        timed="request", latency="latency", latency_per="latency per request", seconds="latency_seconds",
        unit="tokens", batch="prompts per request", main="decode",
        changes="A larger model, a longer prompt or another batch size may have another answer.",
        seeded="the prompts and the arrivals", parity="runs fixed prompts teacher-forced",
        difference="largest logit difference",
    ),
    "forward": Words(
        timed="call", latency="time of a call", latency_per="time of a call", seconds="call_seconds",
        unit="samples", batch="samples per call", main="a call",
        changes="Other inputs, other shapes or another batch size may have another answer.",
        seeded="and the seeds of the inputs", parity="is called on the same inputs",
        difference="largest difference",
        compared="The time compared is that of one call of the module: a request makes several in a row, and "
        "their time in the engine is divided by their number. HTTP, queue and client are left out.",
        absent="A module has no prompts and no tokens: no phases prefill and decode, no time to a first "
        "token, and no texts to compare (parity compares outputs). Requests do not arrive by a schedule. The "
        "bytes and the arithmetic of a call are not known, so there is no roofline; nor is it known which "
        "backend its attention takes, where it has any.",
    ),
}  # fmt: skip
