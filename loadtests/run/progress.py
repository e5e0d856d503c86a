"""What a person sees while a sweep runs: a bar on a terminal, else lines; never silent for ten seconds."""

from __future__ import annotations

from time import monotonic
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from loadtests.plan.cells import Plan
from loadtests.run.assignment import (
    GeneratorEvent,
    GeneratorFinished,
    GeneratorStarted,
    RequestEnded,
    WarmupPassEnded,
)

LINE_SECONDS = 5.0
"""Without a terminal: at most one line in this time, and at least one in twice this time."""


class SweepProgress:
    """Shows waiting, warming up and measuring of one sweep on `console`."""

    def __init__(self, console: Console, plan: Plan) -> None:
        self._console = console
        self._plan = plan
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("requests"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[remaining]}"),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("waiting", total=None, remaining="")
        self._said_at = 0.0
        self._measured = 0
        self._began = monotonic()
        self._errors = 0

    def __enter__(self) -> SweepProgress:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        self._said_at = monotonic()

    def waiting(self, state: str) -> None:
        """The state of the service, told often; shown at once on a terminal, else every few seconds."""
        self._now(f"getting ready, {state}")

    def _beat(self) -> None:
        """So that a long request does not look like a hang."""
        if not self._console.is_terminal and monotonic() - self._said_at > LINE_SECONDS:
            self.say(f"still running, {monotonic() - self._began:.0f} s")

    def take(self, event: GeneratorEvent | None) -> None:
        """Show what the load generator tells; None: nothing for a while."""
        match event:
            case None:
                self._beat()
            case GeneratorStarted(cpus=cpus, note=note):
                self.say(f"load generator on cores {', '.join(map(str, cpus))}; {note}")
            case WarmupPassEnded(number=number, over=over, settled=settled, reason=reason):
                verdict = "" if not over else ("; settled" if settled else "; not settled, measuring anyway")
                self.say(f"warm-up pass {number}: {reason}{verdict}")
                self._began = monotonic()
            case RequestEnded(stage="measure"):
                self._measured += 1
                self._errors += event.error is not None
                self._now(self._line(event), self._measured, self._plan.requests)
            case RequestEnded():
                self._now(f"warm-up · {event.cell} {event.latency_seconds * 1e3:.1f} ms")
            case GeneratorFinished(aborted=str(reason)):
                self.say(f"stopped: {reason}")
            case GeneratorFinished():
                spent = monotonic() - self._began
                self.say(
                    f"measured {self._measured} requests in {spent:.0f} s, {self._errors} of them failed"
                )

    def _line(self, event: RequestEnded) -> str:
        errors = f", {self._errors} failed" if self._errors else ""
        return f"round {event.round}/{self._plan.rounds}{errors} · {event.cell}"

    def _now(self, text: str, done: int | None = None, total: int | None = None) -> None:
        remaining = self._remaining(done, total)
        self._bar.update(self._task, description=text, completed=done or 0, total=total, remaining=remaining)
        if not self._console.is_terminal and monotonic() - self._said_at > LINE_SECONDS:
            of = f" · {done}/{total} requests · {remaining}" if done and total else ""
            self.say(text + of)

    def _remaining(self, done: int | None, total: int | None) -> str:
        if not done or not total:
            return ""
        seconds = (monotonic() - self._began) * (total - done) / done
        return f"about {seconds:.0f} s left"
