"""What is known of one cell and of one group of cells, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from loadtests.plan.cells import BASELINE, Cell, Group
from loadtests.report.payback import Payback
from loadtests.report.phases import PhaseMeans
from service.modes import AUTO
from service.statistics.choice import Choice, Comparison
from service.statistics.intervals import Interval


@dataclass(frozen=True, slots=True)
class Summary:
    """One cell over all rounds. `effective` None: it is unknown, or `auto`, which runs others.

    `parts` are mean seconds per request, None where this device has none.

    `latency` is the typical round's median, `mean_seconds` the mean over requests: `parts` and
    `outside_seconds` add up to the latter. `estimated`: dispatch and kernel are
    shares of the wall time, a CPU's.
    `comparison` is against the baseline's cell of the same group, `against_plain` against the best rung
    without a compiler; None for that cell itself, or where the group has none.
    """

    cell: Cell
    effective: str | None
    requests: int
    latency: Interval
    latency_p95_seconds: float
    mean_seconds: float
    tokens_per_second: Interval
    first_token: Interval | None
    parts: dict[str, float | None]
    total_seconds: float | None
    outside_seconds: float | None
    prefill: PhaseMeans
    decode: PhaseMeans
    prompt_tokens: float | None
    padded_prompt_tokens: float | None
    attended_tokens: float | None
    estimated: bool
    disturbed: bool
    comparison: Comparison | None
    against_plain: Comparison | None
    payback: Payback

    @property
    def runs_as(self) -> str | None:
        """The effective mode, where it differs from the mode."""
        return self.effective if self.effective != self.cell.mode else None

    @property
    def is_baseline(self) -> bool:
        """Whether it is the cell that others are compared with."""
        return self.cell.mode == BASELINE and not self.cell.control

    @property
    def phases(self) -> tuple[PhaseMeans, PhaseMeans]:
        """Prefill and decode."""
        return (self.prefill, self.decode)

    @property
    def skew_seconds(self) -> float:
        """Mean latency − typical latency: what separates the sum of the parts from the latency shown."""
        return self.mean_seconds - self.latency.value


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer for one group: which mode to ship. `choice` None: too few rounds to decide.

    `noise` is the interval of the baseline's ratio to itself, measured twice; None without a control cell.
    """

    group: Group
    summaries: tuple[Summary, ...]
    noise: Interval | None
    choice: Choice | None

    @property
    def batch_size(self) -> int:
        """Batch size of the group."""
        return self.group[0]

    @property
    def baseline(self) -> Summary:
        """Eager's cell."""
        return next(summary for summary in self.summaries if summary.is_baseline)

    @property
    def shipped(self) -> Summary | None:
        """The cell of the mode to ship."""
        return None if self.choice is None else self.of(self.choice.ship)

    def of(self, mode: str) -> Summary:
        """The cell of `mode`, not the control."""
        return next(s for s in self.summaries if s.cell.mode == mode and not s.cell.control)

    @property
    def modes(self) -> list[Summary]:
        """All but the control cell, in the ladder's order, `auto` last."""
        return [summary for summary in self.summaries if not summary.cell.control]

    @property
    def candidates(self) -> list[Summary]:
        """The modes to choose from: without `auto`."""
        return [summary for summary in self.summaries if summary.cell.candidate]

    @property
    def auto(self) -> Summary | None:
        """The cell of `auto`; None without one."""
        return next((summary for summary in self.summaries if summary.cell.mode == AUTO), None)
