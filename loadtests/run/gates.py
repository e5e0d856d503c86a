"""Validity gates of a run, its requests and what the service says: they take rows one by one."""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np

from loadtests.plan.cells import BASELINE, MINIMUM_ROUNDS
from loadtests.run.machine import marked_rounds
from loadtests.run.rows import ROWS_FILE, RequestRow, each_row
from loadtests.run.run_file import SweepRun
from loadtests.run.schedule import Finished, Latencies, Planned, first_missing, group_name
from loadtests.run.target import read_scrapes, requests_by_mode
from service.modes import FALLBACK
from service.records import SIDES, SampleCounts
from service.statistics.boundedness import MOST_SYSTEM, MOST_UNCLASSIFIED, dispatch_share
from service.statistics.choice import EQUIVALENT, compare, is_disturbed
from service.statistics.intervals import Interval


class Gate(msgspec.Struct, frozen=True):
    """One check. `passed` None: does not apply to this sweep. A `warning` never fails the exit code."""

    name: str
    passed: bool | None
    detail: str
    warning: bool = False

    @property
    def failed(self) -> bool:
        """Whether the sweep is not valid because of this."""
        return self.passed is False and not self.warning


def some(names: list[str]) -> str:
    """The first few of `names`, and whether there are more."""
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


MOST_CLIENT_CPU = 0.80


def complete(run: SweepRun, finished: Finished, failed: int) -> Gate:
    """The plan was run to its end and every request that it has came to a row; else nothing is valid."""
    missing = first_missing(run.plan, finished, Planned(run.cut_visits), run.looks)
    passed = run.complete and len(run.order) >= run.plan.rounds and missing is None
    if passed:
        return Gate("complete", True, f"all {len(run.order)} rounds")
    reason = run.stopped_because or f"{len(run.order)} of {run.plan.rounds} rounds"
    detail = f"stopped early: {reason}"
    if missing is not None:
        detail += f"; the first request without a row is in round {missing[0]}, cell '{missing[1].name}'"
    if failed:
        detail += "; requests failed, so that it cannot become valid: run the sweep again"
    elif run.parts:
        detail += "; go on with `launchbound sweep --resume` and this folder"
    return Gate("complete", False, detail)


def gaps(run: SweepRun) -> Gate:
    """The sweep ran in one go, in one service."""
    name = "measured in one go"
    if len(run.parts) < 2:
        return Gate(name, True, "no gap", warning=True)
    shown = [
        f"from {before.ended or 'an unknown time'} to {after.started}"
        for before, after in pairwise(run.parts)
    ]
    detail = f"{len(shown)} gap{'s' if len(shown) > 1 else ''}: {'; '.join(shown)}. Each part warmed up anew"
    return Gate(name, False, detail, warning=True)


def client_cpu(run: SweepRun) -> Gate:
    """The load generator had time to spare, so that what it measured is the service."""
    share = run.client.cpu_share
    detail = "not known, because the sweep did not end" if share is None else f"{share:.0%} of one core"
    name = f"client CPU < {MOST_CLIENT_CPU:.0%}"
    return Gate(name, share is not None and share < MOST_CLIENT_CPU, detail)


def warmup(run: SweepRun) -> Gate:
    """Warm-up ended because nothing changed any more, not because its passes were used up."""
    detail = f"{run.client.warmup_passes} passes; {run.client.warmup_reason}"
    return Gate("warm-up", run.client.warmup_settled, detail, warning=True)


def rounds(run: SweepRun) -> Gate:
    """There are enough rounds for a verdict."""
    done = len(run.order) if run.complete else max(0, len(run.order) - 1)
    few = "" if done >= MINIMUM_ROUNDS else f", fewer than {MINIMUM_ROUNDS}: undecided"
    return Gate("rounds", done >= MINIMUM_ROUNDS, f"{done} rounds{few}", warning=True)


def verdicts(run: SweepRun) -> Gate:
    """The answer of every main group is resolved."""
    name = "answers resolved"
    if not run.looks:
        return Gate(name, None, "the sweep stopped before its first interim check")
    last = run.looks[-1]
    detail = f"after {last.round} rounds"
    if last.undecided:
        remedy = "more rounds may resolve them (--preset standard, or rounds_most in a plan)"
        detail += f" not resolved: {some(last.undecided)}; {remedy}"
    return Gate(name, not last.undecided, detail, warning=True)


def rounds_marked(run: SweepRun) -> Gate:
    """No round in which the hypervisor took time, or memory was read much faster or slower than usual."""
    name = "steady machine"
    known = [
        one for one in run.machine_by_round if (one.steal_share, one.canary_bytes_per_second) != (None, None)
    ]
    if not known:
        return Gate(name, None, "neither steal time nor the canary is known")
    marked = marked_rounds(known)
    detail = f"{len(marked)} of {len(known)} rounds marked"
    if marked:
        detail += f": {some(marked)}"
    return Gate(name, not marked, detail, warning=True)


QUEUED_SECONDS = 0.0002
"""A shorter wait between two processes is no queue."""
MOST_QUEUED = 0.01
ABSENT = "no open-loop cell in this plan"


class Requests:
    """Counts of requests, by cell where a gate names cells, and the gates that they make."""

    def __init__(self) -> None:
        self.failed = 0
        self._rows = self._counted = self._waits = self._queued = 0
        self._longest_wait = 0.0
        self._messages = Counter[str | None]()
        self._rejected, self._merged = Counter[str](), Counter[str]()
        self._switches, self._steps = Counter[str](), Counter[str]()
        self._samples: dict[str, SampleCounts] = defaultdict(SampleCounts)

    def add(self, row: RequestRow) -> None:
        self._rows += 1
        if row.rejected:
            self._rejected[row.cell] += 1
        elif not row.ok:
            self.failed += 1
            self._messages[row.error] += 1
        for name, phase in row.phases.items():
            counts = {side: getattr(phase, f"{side}_samples") or 0 for side in SIDES}
            self._samples[f"{name} of {row.cell}"] += SampleCounts(**counts)
        if not row.counts:
            return
        self._counted += 1
        self._merged[row.cell] += row.merged
        self._switches[row.cell] += row.involuntary_switches or 0
        self._steps[row.cell] += row.steps
        if row.queue_seconds is not None and row.concurrency == 1 and not row.open_loop:
            self._waits += 1
            if row.queue_seconds > QUEUED_SECONDS:
                self._queued += 1
                self._longest_wait = max(self._longest_wait, row.queue_seconds)

    def errors(self) -> Gate:
        """Every request succeeded, those of warm-up too. Past saturation a full queue refuses some."""
        detail = f"{self.failed} of {self._rows} requests failed"
        if rejected := self._rejected.total():
            detail += f", {rejected} rejected past saturation"
        if self.failed:
            message, count = self._messages.most_common(1)[0]
            detail += f"; {count} × {message}"
        return Gate("no errors", bool(self._rows) and not self.failed, detail)

    def disturbed(self) -> Gate:
        """No cell in which the engine lost its core more than once per 20 steps."""
        marked = [cell for cell, steps in self._steps.items() if is_disturbed(self._switches[cell], steps)]
        detail = f"{len(marked)} of {len(self._steps)} cells"
        if marked:
            detail += (
                f" ({some(sorted(marked))}): the engine was preempted; close other programs and run again"
            )
        return Gate("disturbed cells", not marked, detail, warning=True)

    def classes(self) -> Gate:
        """Enough samples tell dispatch from kernel. A warning: where they do not, the times stand."""
        name = "samples split each step"
        sampled = {step: counts for step, counts in self._samples.items() if counts.total}
        if not sampled:
            return Gate(name, None, "no step was sampled", warning=True)
        unknown = [step for step, counts in sampled.items() if dispatch_share(counts) is None]
        detail = f"{len(sampled) - len(unknown)} of {len(sampled)}"
        if unknown:
            detail += (
                f"; dispatch and kernel are unknown of {some(unknown)}: over {MOST_UNCLASSIFIED:.0%} of the "
                f"samples are of no class, or over {MOST_SYSTEM:.0%} in system calls (launchbound anatomy "
                "names the functions)"
            )
        return Gate(name, not unknown, detail, warning=True)

    def queue(self) -> Gate:
        """One request at a time finds an idle engine: what it waits for is work that is not a request's."""
        name = "queue at concurrency 1 is 0"
        if not self._waits:
            return Gate(name, None, "no such request, or none with its queue time")
        detail = f"{self._queued} of {self._waits} requests waited over {QUEUED_SECONDS * 1e3:.1f} ms"
        if self._queued:
            longest = f"the longest {self._longest_wait * 1e3:.1f} ms"
            detail += f", {longest}: the engine did other work between requests"
        return Gate(name, self._queued <= MOST_QUEUED * self._waits, detail, warning=True)

    def merged(self, run: SweepRun) -> Gate:
        """No request ran in steps of others: such times are of what arrived, and of no mode alone.

        A warning, because it is what batching is for.
        """
        name, merged = "requests not merged", +self._merged
        batching = run.engine.get("batching", "off")
        if batching == "off" and not merged:
            return Gate(name, None, "the service merges none", warning=True)
        detail = f"batching {batching}: {merged.total()} of {self._counted} ran in steps of others"
        if merged:
            detail += f": {_counted(merged)}; their times are those of the mode in the batches that arrived"
        return Gate(name, not merged, detail, warning=True)

    def rejections(self, run: SweepRun) -> Gate:
        """The service's queue refused requests only where more arrived than the mode can answer."""
        name = "rejected past saturation only"
        if not any(cell.open_loop for cell in run.plan.cells):
            return Gate(name, None, ABSENT, warning=True)
        early = Counter(
            {cell: self._rejected[cell] for cell in _below_saturation(run) & self._rejected.keys()}
        )
        detail = f"{self._rejected.total()} rejected"
        if early:
            detail += f", below saturation in {_counted(early)}: another client, or a queue that is too short"
        return Gate(name, not early, detail, warning=True)


def cuts(run: SweepRun) -> Gate:
    """Blocks ended early, because their queue only grew, in cells past saturation only."""
    name = "cut past saturation only"
    if not any(cell.open_loop for cell in run.plan.cells):
        return Gate(name, None, ABSENT, warning=True)
    counts = Counter(one.cell for one in run.cut_visits)
    detail = f"{len(run.cut_visits)} blocks cut" + (f": {_counted(counts)}" if counts else "")
    early = sorted(counts.keys() & _below_saturation(run))
    if early:
        detail += f"; below saturation: {some(early)}"
    return Gate(name, not early, detail, warning=True)


def _below_saturation(run: SweepRun) -> set[str]:
    """The cells to which less arrives than the mode can answer; of rates of one's own that is not known."""
    return {cell.name for cell in run.plan.cells if cell.load is not None and cell.load < 1}


def _counted(counts: Counter[str]) -> str:
    return some([f"{cell} ({count} ×)" for cell, count in counts.most_common()])


LEAST_RATE = 0.98
MOST_DELAY = 0.10
"""Of the unloaded latency: see `ScheduleDelay`."""


class Rate:
    """Requests left the client as scheduled: span of intended over span of actual starts, block by block.

    A block that was cut is judged on what it sent. One request alone has no span.
    """

    def __init__(self) -> None:
        self._blocks: dict[tuple[str, int, int], list[float]] = {}

    def add(self, row: RequestRow) -> None:
        """Take in a measured row of an open-loop cell."""
        first = [row.intended_start, row.intended_start, row.start]
        block = self._blocks.setdefault((row.cell, row.round, row.part), first)
        block[0] = min(block[0], row.intended_start)
        block[1] = max(block[1], row.intended_start)
        block[2] = max(block[2], row.start)

    def gate(self) -> Gate:
        """The cell with the lowest ratio."""
        name = f"achieved/target rate ≥ {LEAST_RATE}"
        spans: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for (cell, *_), (first, last, last_start) in self._blocks.items():
            if last > first:
                spans[cell][0] += last - first
                spans[cell][1] += last_start - first
        if not spans:
            absent = "no block has more than one request" if self._blocks else ABSENT
            return Gate(name, None, absent)
        lowest, worst = min((target / actual, cell) for cell, (target, actual) in spans.items())
        return Gate(name, lowest >= LEAST_RATE, f"lowest {lowest:.3f} ({worst})")


class ScheduleDelay:
    """How late the client itself sent requests, past saturation too: its lag is in the latency reported.

    With 99 % of the delays below a bound, quantiles of the latency from the intended start are too high by at
    most the bound, at a rank that is 1 % off (docs/decisions/load.md). It is relative to the latency without
    load: latency less queue, as the median of the cell's requests. A warning: what a sweep decides from is
    closed-loop, and has no such delay.
    """

    def __init__(self) -> None:
        self._delays: dict[str, array[float]] = defaultdict(lambda: array("d"))
        self._unloaded: dict[str, array[float]] = defaultdict(lambda: array("d"))

    def add(self, row: RequestRow) -> None:
        """Take in a measured row of an open-loop cell."""
        self._delays[row.cell].append(row.start - row.intended_start)
        if row.counts and row.queue_seconds is not None:
            self._unloaded[row.cell].append(row.latency_seconds - row.queue_seconds)

    def gate(self) -> Gate:
        """The cell with the highest 99th percentile, relative to its latency without load."""
        name = "schedule delay"
        known = {cell: delays for cell, delays in self._delays.items() if cell in self._unloaded}
        if not known:
            absent = "no request with its queue time succeeded" if self._delays else ABSENT
            return Gate(name, None, absent, warning=True)
        late = {cell: float(np.quantile(found, 0.99, method="inverted_cdf")) for cell, found in known.items()}
        share, worst = max((late[cell] / float(np.median(self._unloaded[cell])), cell) for cell in known)
        detail = (
            f"99th percentile at most {late[worst] * 1e3:.2f} ms, {share:.1%} of the latency without load, "
            f"{MOST_DELAY:.0%} allowed ({worst})"
        )
        return Gate(name, share < MOST_DELAY, detail, warning=True)


# What the service says of itself: its counters, its modes, the texts of its answers

_Ran = tuple[str, str | None, bool]
"""Of a request: its mode, what that ran as, and whether it succeeded."""

Scrapes = tuple[str | None, str | None]
"""The texts of /metrics before and after one part of a sweep; None where there is none."""


class Counters:
    """The server counted, per mode, exactly the requests with a row: no other client, no loss.

    Whatever came of them: the server counts those that it rejects under their mode too, and those that ran
    as another form than their mode had declared under FALLBACK.

    An earlier part ended while requests were in flight: the server may have counted so many more.
    Where it was killed it has no scrape after it, its service may be gone too, and its rows stay unchecked.
    A scrape through a proxy is that of one replica, and says nothing of what the others counted.
    """

    def __init__(self) -> None:
        self._sent: dict[int, Counter[_Ran]] = defaultdict(Counter)

    def add(self, row: RequestRow) -> None:
        self._sent[row.part][row.mode, row.effective_mode, row.ok] += 1

    def sent(self, part: int) -> int:
        """Rows of `part` of the sweep, of whatever stage."""
        return self._sent[part].total()

    def gate(self, run: SweepRun, scrapes: Sequence[Scrapes]) -> Gate:
        """Rows against counts; `scrapes` by part."""
        name = "client rows = server's count"
        if run.plan.replicas:
            return Gate(name, None, "not judged: several replicas, each counts what it answered")
        if None in scrapes[-1]:
            return Gate(name, False, "/metrics could not be read before and after")
        wrong, unchecked, checked = [], [], 0
        for part, (before, after) in enumerate(scrapes, start=1):
            sent = _by_label(self._sent[part], run)
            if before is None or after is None:
                unchecked.append(
                    f"the {sent.total()} rows of part {part}, which was killed, could not be checked"
                )
                continue
            checked += sent.total()
            in_flight = 0 if part == len(scrapes) else _most_in_flight(run)
            wrong += _miscounts(sent, _count_difference(before, after), in_flight)
        detail = "; ".join([*wrong, *unchecked] if wrong else [f"{checked} both, per mode", *unchecked])
        return Gate(name, not wrong, detail)

    def fallbacks(self, run: SweepRun) -> Gate:
        """No request ran as something else than its mode had declared."""
        declared = {mode: run.mode(mode).get("effective") for mode in run.plan.modes}
        other = [
            f"{count} × {mode} ran as {effective}"
            for (mode, effective, ok), count in sum(self._sent.values(), Counter[_Ran]()).items()
            if ok and effective != declared.get(mode)
        ]
        detail = "; ".join(other) or "every request ran as declared"
        return Gate("fallbacks", not other, detail, warning=True)


def _by_label(ran: Counter[_Ran], run: SweepRun) -> Counter[str]:
    """How many requests there are for each value of the label `mode`."""
    sent = Counter[str]()
    for (mode, effective, ok), count in ran.items():
        declared = run.mode(mode).get("effective")
        as_declared = not ok or None in (effective, declared) or effective == declared
        sent[mode if as_declared else FALLBACK] += count
    return sent


def _most_in_flight(run: SweepRun) -> int:
    """So many requests can have been sent and have no row: those in flight, and one that has just ended."""
    blocks = [cell.requests if cell.open_loop else cell.concurrency for cell in run.plan.cells]
    return 1 + max(*blocks, 0)


def _miscounts(sent: Counter[str], counted: Counter[str], in_flight: int) -> list[str]:
    """What the server counted wrongly; `in_flight` more than were sent are none, in all modes together."""
    more = {mode: counted[mode] - sent[mode] for mode in sorted({*sent, *counted})}
    if min(more.values(), default=0) >= 0 and sum(more.values()) <= in_flight:
        return []
    return [f"{mode}: {sent[mode]} rows, {counted[mode]:.0f} counted" for mode in more if more[mode]]


def _count_difference(before: str, after: str) -> Counter[str]:
    earlier = requests_by_mode(before)
    difference = Counter[str]()
    for mode, outcomes in requests_by_mode(after).items():
        difference[mode] += int(sum(outcomes.values()) - sum(earlier.get(mode, {}).values()))
    return difference


def parity(run: SweepRun) -> Gate:
    """Every mode was compared with eager at warm-up, and computes the same."""
    verdicts = {mode: run.mode(mode).get("parity") for mode in run.plan.modes}
    unknown = [mode for mode, verdict in verdicts.items() if verdict is None]
    out = [mode for mode, verdict in verdicts.items() if verdict is not None and not verdict["passed"]]
    wrong = [f"out of parity: {', '.join(out)}"] if out else []
    wrong += [f"not checked: {', '.join(unknown)}"] if unknown else []
    detail = "; ".join(wrong) or "every mode computes what eager computes"
    return Gate("parity", not out and not unknown, detail)


def control(latencies: Latencies, run: SweepRun) -> Gate:
    """The baseline against its control cell, the same work twice: their interval reaches within 2 % of 1."""
    name = f"{BASELINE} against itself"
    ratios = _control_ratios(latencies, run)
    if not ratios:
        return Gate(name, None, "no control cell was measured")
    off = {group: r for group, r in ratios.items() if r.low > EQUIVALENT or r.high < 1 / EQUIVALENT}
    worst = max(ratios, key=lambda group: abs(math.log(ratios[group].value)))
    shown = [f"{group} ×{r.value:.3f} ({r.low:.3f} to {r.high:.3f})" for group, r in off.items()]
    detail = f"differs in {some(shown)}" if off else f"at most ×{ratios[worst].value:.3f} ({worst})"
    return Gate(name, not off, detail, warning=True)


def _control_ratios(latencies: Latencies, run: SweepRun) -> dict[str, Interval]:
    """By the name of its group, the paired ratio of the baseline's cell and its control."""
    cells = {(cell.group, cell.control): cell for cell in run.plan.cells if cell.mode == BASELINE}
    ratios = {}
    for (group, is_control), cell in cells.items():
        first = cells.get((group, False))
        if not is_control or first is None or cell.open_loop:
            continue
        medians = latencies.medians(first.name), latencies.medians(cell.name)
        if medians[0].keys() & medians[1].keys():
            ratios[group_name(group)] = compare(*medians).speedup
    return ratios


_Prompts = tuple[int, str | None, int | None, int]
"""Batch size, prompt set, new tokens, round: within these the same index has the same prompts."""


class Texts:
    """In every round all modes complete the same prompts with the same texts; in float32 they have to."""

    def __init__(self) -> None:
        # By prompts and cell: 64 bits of the texts of each request, and its index.
        self._blocks: dict[_Prompts, dict[str, tuple[array[int], array[int]]]] = defaultdict(dict)
        self._of_baseline = set[str]()

    def add(self, row: RequestRow) -> None:
        """Take in a row that counts."""
        if row.text_digest is None:
            return
        blocks = self._blocks[row.batch_size, row.prompt_set, row.new_tokens, row.round]
        indexes, hashes = blocks.setdefault(row.cell, (array("q"), array("q")))
        indexes.append(row.index)
        # A digest is 64 bits of a hash itself: the hash of the string tells two apart as surely.
        hashes.append(hash(row.text_digest))
        if row.mode == BASELINE:
            self._of_baseline.add(row.cell)

    def gate(self, run: SweepRun) -> Gate:
        """How many sets of prompts have one text, and the cells that differ in the others."""
        name = "same texts in all modes"
        sets, wrong, odd = 0, 0, Counter[str]()
        for blocks in self._blocks.values():
            texts: dict[int, dict[str, int]] = defaultdict(dict)
            for cell, (indexes, hashes) in blocks.items():
                for index, text in zip(indexes, hashes, strict=True):
                    texts[index][cell] = text
            for by_cell in texts.values():
                if len(by_cell) > 1:
                    cells = self._odd_ones(by_cell)
                    sets, wrong = sets + 1, wrong + bool(cells)
                    odd.update(cells)
        if not sets:
            return Gate(name, None, "no prompts with texts of two modes")
        detail = f"{sets - wrong} of {sets} sets of prompts"
        if wrong:
            detail += f"; different: {_counted(odd)}"
        warning = run.engine.get("dtype") != "float32"
        return Gate(name, not wrong, detail, warning=warning)

    def _odd_ones(self, texts: Mapping[str, int]) -> list[str]:
        """The cells whose text is not the baseline's or, without it, that of most."""
        usual = Counter(texts.values()).most_common(1)[0][0]
        reference = next((text for cell, text in texts.items() if cell in self._of_baseline), usual)
        return [cell for cell, text in texts.items() if text != reference]


# All of them, and `validation.json`, which keeps them

VALIDATION_FILE = "validation.json"


class CheckedRows:
    """What gates and resumption keep of rows that are read once: at most some 50 bytes of each."""

    def __init__(self) -> None:
        self.finished = Finished()
        self.requests = Requests()
        self.counters = Counters()
        self._rate = Rate()
        self._delay = ScheduleDelay()
        self._texts = Texts()

    def passing(self, rows: Iterable[RequestRow]) -> Iterator[RequestRow]:
        """Yield `rows`, each added as it passes."""
        for row in rows:
            self.add(row)
            yield row

    def add(self, row: RequestRow) -> None:
        for of_all in (self.finished, self.requests, self.counters):
            of_all.add(row)
        if row.stage == "measure" and row.open_loop:
            self._rate.add(row)
            self._delay.add(row)
        if row.counts:
            self._texts.add(row)

    def gates(self, run: SweepRun, scrapes: Sequence[Scrapes]) -> list[Gate]:
        """All gates, then all warnings; `scrapes` of /metrics by part."""
        found = [
            complete(run, self.finished, self.requests.failed),
            self.requests.errors(),
            self.counters.gate(run, scrapes),
            self._rate.gate(),
            client_cpu(run),
            parity(run),
            self._texts.gate(run),
            control(self.finished.all_latencies(), run),
            verdicts(run),
            rounds(run),
            warmup(run),
            rounds_marked(run),
            gaps(run),
            self.requests.disturbed(),
            self.requests.classes(),
            self.requests.queue(),
            self.requests.merged(run),
            self.counters.fallbacks(run),
            self._delay.gate(),
            self.requests.rejections(run),
            cuts(run),
        ]
        return sorted(found, key=lambda gate: gate.warning)

    def gates_of(self, folder: Path, run: SweepRun) -> list[Gate]:
        """As `gates`, with the scrapes of the rows' `folder`."""
        parts = range(1, max(1, len(run.parts)) + 1)
        return self.gates(run, [read_scrapes(folder, number) for number in parts])


def check_rows(folder: Path) -> CheckedRows:
    """Read the rows of a results folder once: none where no request has ended yet. Raises as `each_row`."""
    checked = CheckedRows()
    for row in each_row(folder) if (folder / ROWS_FILE).exists() else ():
        checked.add(row)
    return checked


def write_validation(folder: Path, gates: Sequence[Gate]) -> None:
    document = {"passed": not any(gate.failed for gate in gates), "gates": gates}
    text = msgspec.json.format(msgspec.json.encode(document), indent=2)
    (folder / VALIDATION_FILE).write_bytes(text + b"\n")
