"""Gates on what the service says of itself: its counters, its modes, the text of its answers."""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from loadtests.plan.cells import BASELINE
from loadtests.run.gates import Gate, some
from loadtests.run.rows import RequestRow
from loadtests.run.run_file import SweepRun
from loadtests.run.schedule import Latencies, group_name
from loadtests.run.target import requests_by_mode
from service.modes import FALLBACK
from service.statistics.choice import EQUIVALENT, compare
from service.statistics.intervals import Interval

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


_Prompts = tuple[int, str, int, int]
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
            detail += f"; different: {some([f'{cell} ({count} ×)' for cell, count in odd.most_common()])}"
        warning = run.engine.get("dtype") != "float32"
        return Gate(name, not wrong, detail, warning=warning)

    def _odd_ones(self, texts: Mapping[str, int]) -> list[str]:
        """The cells whose text is not the baseline's or, without it, that of most."""
        usual = Counter(texts.values()).most_common(1)[0][0]
        reference = next((text for cell, text in texts.items() if cell in self._of_baseline), usual)
        return [cell for cell, text in texts.items() if text != reference]
