"""What a served model does with a request, as a table: the phases of its steps. Pure data, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from service.records import PHASES, Phase

WorkloadName = Literal["generate", "forward"]


@dataclass(frozen=True, slots=True)
class Workload:
    """`generate`: a causal language model completes prompts. `forward`: a module is called on inputs.

    `phases`: those of its steps, in the order in which a request has them. `main` is the one whose kernel
    share and headroom stand for a mode, and whose steps texts call `step`.
    """

    name: WorkloadName
    phases: tuple[Phase, ...]
    main: Phase
    step: str

    @property
    def route(self) -> str:
        """Where its requests are posted."""
        return f"/v1/modes/{{mode}}/{self.name}"


GENERATE = Workload("generate", PHASES, "decode", "decode step")
FORWARD = Workload("forward", ("forward",), "forward", "call")

WORKLOADS: dict[str, Workload] = {workload.name: workload for workload in (GENERATE, FORWARD)}
