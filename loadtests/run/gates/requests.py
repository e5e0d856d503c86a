"""Gates of the requests: none failed, and none was kept waiting or disturbed.

Each takes the rows one by one and keeps counts, so that a long sweep takes no more memory than a short one.
"""

from __future__ import annotations

from collections import Counter

from loadtests.run.gates.gate import Gate, some
from loadtests.run.rows import RequestRow
from loadtests.run.run_file import SweepRun
from service.statistics.disturbance import is_disturbed

QUEUED_SECONDS = 0.0002
"""A shorter wait between two processes is no queue."""
MOST_QUEUED = 0.01


class Errors:
    """Every request succeeded, those of warm-up too. Past saturation a full queue refuses some."""

    def __init__(self) -> None:
        self.failed = 0
        self._rows = 0
        self._rejected = 0
        self._messages = Counter[str | None]()

    def add(self, row: RequestRow) -> None:
        """Take in any row."""
        self._rows += 1
        if row.ok:
            return
        if row.rejected:
            self._rejected += 1
        else:
            self.failed += 1
            self._messages[row.error] += 1

    def gate(self) -> Gate:
        """How many failed, and with which message most of them."""
        detail = f"{self.failed} of {self._rows} requests failed"
        if self._rejected:
            detail += f", {self._rejected} rejected past saturation"
        if self.failed:
            message, count = self._messages.most_common(1)[0]
            detail += f"; {count} × {message}"
        return Gate(name="no errors", passed=bool(self._rows) and not self.failed, detail=detail)


class Disturbed:
    """No cell in which the engine lost its core more than once per 20 steps."""

    def __init__(self) -> None:
        self._switches = Counter[str]()
        self._steps = Counter[str]()

    def add(self, row: RequestRow) -> None:
        """Take in a row that counts."""
        self._switches[row.cell] += row.involuntary_switches or 0
        self._steps[row.cell] += row.steps

    def gate(self) -> Gate:
        """The cells where it did."""
        marked = [cell for cell, steps in self._steps.items() if is_disturbed(self._switches[cell], steps)]
        detail = f"{len(marked)} of {len(self._steps)} cells"
        if marked:
            detail += (
                f" ({some(sorted(marked))}): the engine was preempted; close other programs and run again"
            )
        return Gate(name="disturbed cells", passed=not marked, detail=detail, warning=True)


class Queue:
    """One request at a time finds an idle engine: whatever it waits for is work that is not a request's."""

    def __init__(self) -> None:
        self._waits = 0
        self._queued = 0
        self._longest = 0.0

    def add(self, row: RequestRow) -> None:
        """Take in a row that counts."""
        if row.queue_seconds is None or row.concurrency != 1 or row.open_loop:
            return
        self._waits += 1
        if row.queue_seconds > QUEUED_SECONDS:
            self._queued += 1
            self._longest = max(self._longest, row.queue_seconds)

    def gate(self, run: SweepRun) -> Gate:
        """How many waited, and the longest wait. In a window of the service's each waits for others."""
        name = "queue at concurrency 1 is 0"
        if run.engine.get("batching") == "window":
            return Gate(name=name, passed=None, detail="requests wait for others to be merged with")
        if not self._waits:
            return Gate(name=name, passed=None, detail="no such request, or none with its queue time")
        detail = f"{self._queued} of {self._waits} requests waited over {QUEUED_SECONDS * 1e3:.1f} ms"
        if self._queued:
            longest = f"the longest {self._longest * 1e3:.1f} ms"
            detail += f", {longest}: the engine did other work between requests"
        passed = self._queued <= MOST_QUEUED * self._waits
        return Gate(name=name, passed=passed, detail=detail, warning=True)


class Merged:
    """No request ran in steps of others: such times are of what arrived, and of no mode alone."""

    def __init__(self) -> None:
        self._counted = 0
        self._merged = Counter[str]()

    def add(self, row: RequestRow) -> None:
        """Take in a row that counts."""
        self._counted += 1
        if row.merged:
            self._merged[row.cell] += 1

    def gate(self, run: SweepRun) -> Gate:
        """How many did, and in which cells; a warning, because it is what batching is for."""
        name = "requests not merged"
        batching = run.engine.get("batching", "off")
        if batching == "off" and not self._merged:
            return Gate(name=name, passed=None, detail="the service merges none", warning=True)
        cells = some([f"{cell} ({count} ×)" for cell, count in self._merged.most_common()])
        detail = f"batching {batching}: {self._merged.total()} of {self._counted} ran in steps of others"
        detail += f": {cells}; their times are those of the mode in the batches that arrived" if cells else ""
        return Gate(name=name, passed=not self._merged, detail=detail, warning=True)
