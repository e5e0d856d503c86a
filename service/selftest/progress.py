"""Never silent for long: a line when a check ends, and in between what runs now."""

from __future__ import annotations

from collections import Counter
from threading import Event, Thread
from time import monotonic

from rich.console import Console

from service.measure.rounds import Say
from service.selftest.results import CheckResult

BEAT_SECONDS = 5.0


class Progress:
    """Says every five seconds what runs, whether or not that has said anything itself."""

    def __init__(self, console: Console) -> None:
        self._console, self._began = console, monotonic()
        self._now = "starting"
        self._over = Event()
        self._beat = Thread(target=self._beats, daemon=True)
        self._beat.start()

    def say(self, name: str, text: str) -> None:
        """`name` is at `text`."""
        self._now = f"{name}: {text}"

    def say_for(self, name: str) -> Say:
        """`say` for one check."""
        return lambda text: self.say(name, text)

    def ended(self, name: str, title: str, rows: list[CheckResult]) -> None:
        """A check is over."""
        counts = ", ".join(
            f"{count} {verdict}" for verdict, count in Counter(r.verdict for r in rows).items()
        )
        self._line(f"{name} ({title}): {counts}")
        self._now = "on to the next check"

    def close(self) -> None:
        """Say no more."""
        self._over.set()
        self._beat.join()

    def _beats(self) -> None:
        while not self._over.wait(BEAT_SECONDS):
            self._line(f"  … {self._now}")

    def _line(self, text: str) -> None:
        self._console.print(f"{monotonic() - self._began:4.0f} s  {text}", highlight=False, markup=False)
