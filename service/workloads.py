"""What a served model does with a request, as a table: the phases of its steps. Pure data, without torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from service.records import PHASES, Job, Phase

WorkloadName = Literal["generate", "forward"]


@dataclass(frozen=True, slots=True)
class Workload:
    """`generate`: a causal language model completes prompts. `forward`: a module is called on inputs.

    `phases`: those of its steps, in the order in which a request has them. `main` is the one whose kernel
    share and headroom stand for a mode, and whose steps texts call `step`. `tokens`: its requests are of
    prompts, have tokens, and run in the smallest batch bucket that holds them; else of a configured batch
    size. `smaller` and `shorter` are what to ask for where memory or time does not suffice.
    """

    name: WorkloadName
    phases: tuple[Phase, ...]
    main: Phase
    step: str
    tokens: bool
    smaller: str
    shorter: str

    @property
    def route(self) -> str:
        """Where its requests are posted."""
        return f"/v1/modes/{{mode}}/{self.name}"

    def bucket(self, sizes: Iterable[int], batch_size: int) -> int | None:
        """The one of `sizes` that `batch_size` runs in; None where there is none.

        Prompts run in the smallest that holds them; a module only in a size that is configured, as nobody can
        say which of a stranger's dimensions may be padded.
        """
        held = [size for size in sizes if size >= batch_size >= 1]
        found = min(held, default=None)
        return found if self.tokens or found == batch_size else None

    def phase_of(self, asked: Phase | None) -> Phase:
        """`asked`, or for None the main one. Raises ValueError for one of another workload."""
        phase = self.main if asked is None else asked
        if phase not in self.phases:
            raise ValueError(f"no phase '{phase}' here; try one of {', '.join(self.phases)}")
        return phase


GENERATE = Workload(
    "generate", PHASES, "decode", "decode step", tokens=True, smaller="fewer prompts or tokens",
    shorter="fewer tokens",
)  # fmt: skip
FORWARD = Workload(
    "forward", ("forward",), "forward", "call", tokens=False, smaller="a smaller batch", shorter="fewer calls"
)

WORKLOADS: dict[str, Workload] = {workload.name: workload for workload in (GENERATE, FORWARD)}


def of_job(job: Job) -> Workload:
    """What `job` is a request of."""
    return GENERATE if job.forward is None else FORWARD
