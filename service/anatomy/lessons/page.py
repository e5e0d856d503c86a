"""The page of lessons, written from one folder of findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from service.anatomy.lessons.answer import ABOUT, Answer
from service.anatomy.lessons.claims import Claim, answers
from service.anatomy.lessons.findings import FILE, Findings, read

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "lessons.md"
KEPT = ROOT / "benchmarks"
SUFFIX = "-lessons"

_INTRODUCTION = """# Lessons: the folklore, beside what this machine measures

Texts about PyTorch's overhead quote the same numbers again and again, often without a machine beside them.
Each row has a quoted claim, the value measured on one machine by a study or a probe that you can run on
yours, and the verdict."""

_READING = f"""A value stands with its 95 % interval in parentheses; one without was counted, not timed.
A row *agrees* where the whole interval of every value lies in the quoted range, *disagrees* where each lies
outside of it, *agrees in part* where some do the one and some the other; where an interval reaches across an
end of the range the row is *undecided*. A quoted "~x" is taken as x / {ABOUT:g} to x · {ABOUT:g}.

Layers are of one operator on [8, 8] tensors, called again and again, with grad mode on: within a model each
costs more. On a CPU dispatch and kernels are shares of a step, by samples of its thread
([method.md](method.md)). Counts of a block are those of a whole decode step over its layers, with embedding,
mask and head. Saved tensors are those that only eager's tape keeps alive in a prefill chunk."""

_WAITING = """Rows that need a GPU wait for one: a CPU launches nothing, allocates nothing on a device and
waits for none."""


def newest(kept: Path = KEPT) -> Path:
    """The newest folder of findings, by the day in its name. Raises LookupError where there is none."""
    folders = sorted(file.parent for file in kept.glob(f"*{SUFFIX}/{FILE}"))
    if not folders:
        raise LookupError(f"no findings in {kept.name}/*{SUFFIX}: run `launchbound lessons`")
    return folders[-1]


def page_of(folder: Path) -> str:
    """The page of the findings in `folder`."""
    findings = read(folder)
    parts = [_INTRODUCTION, _source(findings, folder), _table(answers(findings)), _READING]
    if findings.machine.device == "cpu":
        parts.append(_WAITING)
    return "\n\n".join(parts) + "\n"


def _source(findings: Findings, folder: Path) -> str:
    where = f"`{FILE}` in the folder `{folder.name}`"
    if folder.parent.name == "benchmarks":
        where = f"[benchmarks/{folder.name}](../benchmarks/{folder.name}/{FILE})"
    return (
        f"Measured on {findings.measured}: {findings.machine}.\n{findings.rounds} rounds; every finding is "
        f"in {where}.\n`launchbound lessons` measures anew, in minutes, and writes this page."
    )


def _table(rows: Iterable[tuple[Claim, Answer]]) -> str:
    heads: Sequence[str] = ("claim", "quoted", "measured here", "verdict", "measured by")
    lines = [heads, ["---"] * len(heads), *(_cells(claim, answer) for claim, answer in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cells(claim: Claim, answer: Answer) -> Sequence[str]:
    values = "; ".join(answer.values) or "–"
    verdict = f"{answer.verdict}: {answer.why_not}" if answer.why_not else f"**{answer.verdict}**"
    return claim.about, claim.quoted, values, verdict, claim.by
