"""Write the tables of docs/observability.md from the catalogue, or with --check fail where they are old.

`python -m service.front.metrics.page --write | --check`; exit code 1 if it is not current.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from service.front.metrics.catalogue import (
    CATALOGUE,
    COMPILE_BUCKETS,
    FALLBACK_REASONS,
    LAG_BUCKETS,
    OUTCOMES,
    REJECTIONS,
    REQUEST_BUCKETS,
    STEP_BUCKETS,
    TOKEN_BUCKETS,
    TOKEN_KINDS,
    MetricSpec,
    Start,
)
from service.front.metrics.series import new_registry
from service.modes import FALLBACK
from service.records import PHASES, SIDES

PAGE = Path(__file__).parents[3] / "docs" / "observability.md"

ABSENT: dict[Start, str] = {
    "always": "never",
    "timings": "instrumentation turned down",
    "dispatch": "on a CPU without samples",
    "cpu": "on CUDA, until measured; on a CPU without samples",
    "sampled": "on CUDA; on a CPU without samples",
    "cuda": "on a CPU",
    "merged": "where requests are not merged",
    "once measured": "until measured",
}


def page(text: str) -> str:
    """`text` with each table that follows a comment with its name made anew."""
    tables = {
        "metrics": _table(("name", "type", "labels", "unit", "meaning", "absent"), map(_line, CATALOGUE)),
        "labels": _table(("label", "values"), _labels()),
        "buckets": _table(("metrics", "boundaries"), _buckets()),
        "process": _table(("name", "type", "meaning"), _of_the_process()),
    }
    for name, table in tables.items():
        head, comment, rest = text.partition(f"<!-- {name} -->\n\n")
        text = head + comment + table + re.sub(r"^([|].*\n)+", "", rest)
    return text


def _line(row: MetricSpec) -> tuple[str, ...]:
    labels = ", ".join(row.labels) or "–"
    absent = "until known" if row.kind == "info" else ABSENT[row.start]
    return f"`{row.name}`", row.kind, labels, row.unit or "–", row.help, absent


def _labels() -> Iterator[tuple[str, str]]:
    modes = "the configured modes, by the requested name"
    yield (
        "mode",
        f"{modes}; on CUDA, of what is observed per request, also `{FALLBACK}`: ran as another form than "
        "declared; of `compile_seconds` only those that compile",
    )
    yield "batch", "the configured batch sizes: the bucket that a request's batch was run in"
    yield "phase", _code_list(PHASES)
    yield "outcome", _code_list(OUTCOMES)
    yield "kind", _code_list(TOKEN_KINDS)
    yield "side", _code_list(SIDES)
    yield "reason", f"of a refusal: {_code_list(REJECTIONS)}; of a fallback: {_code_list(FALLBACK_REASONS)}"
    yield "stat", "`current`, `peak`"
    yield "cache", "`cold`, `warm`, `none`"
    yield "others", "of info metrics: one value each while the engine runs"


def _buckets() -> Iterator[tuple[str, str]]:
    shared: dict[tuple[float, ...], list[str]] = {}
    for row in CATALOGUE:
        if row.kind == "histogram":
            shared.setdefault(row.buckets, []).append(f"`{row.name}`")
    origin = {
        REQUEST_BUCKETS: "`REQUEST_BUCKETS`, near to geometric with round values",
        STEP_BUCKETS: "`STEP_BUCKETS`, by factors of √2",
        TOKEN_BUCKETS: "`TOKEN_BUCKETS`, by factors of 2",
        COMPILE_BUCKETS: "`COMPILE_BUCKETS`",
        LAG_BUCKETS: "`LAG_BUCKETS`",
    }
    for buckets, names in shared.items():
        bounds = ", ".join(f"{bound:g}" for bound in buckets)
        yield ", ".join(names), f"{origin[buckets]}: {bounds}" if buckets else "the configured batch sizes"


def _of_the_process() -> Iterator[tuple[str, str, str]]:
    for family in sorted(new_registry().collect(), key=lambda family: family.name):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        yield f"`{name}`", family.type, family.documentation.rstrip(".") + "."


def _code_list(values: Iterable[str]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [heads, ["---"] * len(heads), *lines]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m service.front.metrics.page", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="write docs/observability.md")
    what.add_argument("--check", action="store_true", help="write nothing; fail where it is not current")
    written = PAGE.read_text(encoding="utf-8")
    current = page(written)
    if parser.parse_args(arguments).write:
        PAGE.write_text(current, encoding="utf-8")
    elif written != current:
        print(f"not current: {PAGE.name}; run: python -m service.front.metrics.page --write", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
