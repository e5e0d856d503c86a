"""Progress of a sweep on the console: a line at least every ten seconds."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from rich.console import Console

from loadtests.plan.cells import Plan
from loadtests.run.events import (
    BlockCut,
    GeneratorEvent,
    GeneratorFinished,
    GeneratorStarted,
    InterimCheckEnded,
    RequestEnded,
    WarmupPassEnded,
)
from loadtests.run.run_file import CutBlock, SweepRun

LINE_SECONDS = 5.0
"""At most one line of progress per interval, and at least one per two intervals."""


class SweepProgress:
    """Shows waiting, warming up and measuring of one sweep on `console`."""

    def __init__(self, console: Console, plan: Plan) -> None:
        self._console = console
        self._plan = plan
        self._began, self._printed_at = monotonic(), 0.0
        self._planned, self._measured, self._errors, self._rejected = plan.requests, 0, 0, 0

    def replan(self, plan: Plan) -> None:
        """Show another plan, before anything of it is measured."""
        self._plan, self._planned = plan, plan.requests

    def already_measured(self, run: SweepRun, requests: int) -> None:
        """Leave out the measured `requests` of earlier parts, and what was cut from `run`."""
        self._planned -= requests
        self._leave_out(run.cut_visits)
        self.print_line(f"going on: {requests} requests were measured before")

    def print_line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        self._printed_at = monotonic()

    def waiting(self, state: str) -> None:
        self._update(f"getting ready, {state}")

    def show(self, event: GeneratorEvent | None) -> None:
        """Show an event of the load generator; None: there was none for a second."""
        match event:
            case None if self._line_is_due:
                self.print_line(f"still running, {monotonic() - self._began:.0f} s")
            case GeneratorStarted(cpus=cpus, note=note):
                self.print_line(f"load generator on cores {', '.join(map(str, cpus))}; {note}")
            case WarmupPassEnded(number=number, over=over, settled=settled, reason=reason):
                verdict = "" if not over else ("; settled" if settled else "; not settled, measuring anyway")
                self.print_line(f"warm-up pass {number}: {reason}{verdict}")
                self._began = monotonic()
            case RequestEnded(stage="measure"):
                self._measured += 1
                self._errors += event.error is not None and not event.rejected
                self._rejected += event.rejected
                self._update(self._line(event))
            case RequestEnded(stage=stage):
                stage_name = "sampled" if stage == "sample" else "warm-up"
                self._update(f"{stage_name} · {event.cell} {event.latency_seconds * 1e3:.1f} ms")
            case InterimCheckEnded(look=check, requests=requests):
                self._planned += requests
                if requests:
                    groups = ", ".join(check.undecided)
                    self.print_line(f"after round {check.round} not resolved, and measured further: {groups}")
            case BlockCut(visit=cut):
                self._leave_out([cut])
                self.print_line(f"round {cut.round}, {cut.cell}: cut after {cut.sent} requests, {cut.reason}")
            case GeneratorFinished(aborted=str(reason)):
                self.print_line(f"stopped: {reason}")
            case GeneratorFinished():
                spent = monotonic() - self._began
                refused = f", {self._rejected} refused past saturation" if self._rejected else ""
                self.print_line(
                    f"measured {self._measured} requests in {spent:.0f} s, {self._errors} failed{refused}"
                )

    def _leave_out(self, cuts: Sequence[CutBlock]) -> None:
        """Plan no request that is not sent because of `cuts`."""
        requests = {cell.name: cell.requests for cell in self._plan.cells}
        self._planned -= sum(requests[cut.cell] - cut.sent for cut in cuts)

    def _line(self, event: RequestEnded) -> str:
        errors = f", {self._errors} failed" if self._errors else ""
        until = next((check for check in self._plan.interim_checks if check >= event.round), event.round)
        return f"round {event.round}/{until}{errors} · {event.cell}"

    def _update(self, text: str) -> None:
        if not self._line_is_due:
            return
        if done := self._measured:
            seconds = (monotonic() - self._began) * (self._planned - done) / done
            text += f" · {done}/{self._planned} requests · about {seconds:.0f} s left"
        self.print_line(text)

    @property
    def _line_is_due(self) -> bool:
        return monotonic() - self._printed_at > LINE_SECONDS
