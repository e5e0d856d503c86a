"""Write docs/metrics.md from the catalogue, or with --check fail where the committed page is not current.

`python -m service.front.metrics.page --write | --check`; exit code 1 where the page is not current.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from service.front.metrics.catalogue import (
    CATALOGUE,
    COMPILE_BUCKETS,
    FALLBACK_REASONS,
    LAG_BUCKETS,
    OUTCOMES,
    PHASES,
    PREFIX,
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
from service.records import SIDES

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"

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

INTRODUCTION = f"""\
# Metrics

What `GET /metrics` exports, made from `service/front/metrics/catalogue.py` by `make dashboards`: do not edit
it here.

Every name begins with `{PREFIX}`. Units are base units: seconds, bytes, or a pure number (–). Labels take
only the values listed below, so there are at most 800 series per mode, and at most 1,500 of five modes and
three batch sizes on a CPU. What this device can measure is there at 0 for every label set from the start;
what it cannot is absent, never a copy of something else. All figures of one request are observed together,
after its answer. A counter never goes backwards while the front process lives, even where the engine is
restarted.

A page is made at most once a second and answered again until it is older, however many scrape: making it
holds the event loop. Who must have what is true now (a test, a difference of two pages) asks with
`Cache-Control: no-cache`.

In OpenMetrics a bucket of a request's time histograms may carry an exemplar: the newest profiled request
whose time belongs there, by its `trace_id` (`GET /v1/traces/{{id}}`, while the trace is kept). The bucket
does not count it, because the profiler slows what it observes; an id of more than 120 characters is left
out."""

ABSENCE = """\
## When a metric is absent

- *on a CPU*: it needs a GPU.
- *on CUDA, until measured*: there kernel time comes from the profiler, which warm-up runs in every mode. It
  is absent until the first request after that, and where the profiler sees no kernels.
- *on a CPU without samples*: where the engine's thread cannot be sampled (`engine.no_samples` in `GET
  /v1/modes` has the reason). Else it is there once the engine is.
- *on CUDA*: dispatch is measured there, and nothing is sampled.
- *instrumentation turned down*: with `LAUNCHBOUND_INSTRUMENTATION` at `host` or `off` it is absent until
  something measured it; so are the rows of the kinds above.
- *until measured*: what is known only after warm-up or after the first profiled request, and the memory of a
  GPU, which the engine reports at its start and then at most once a second. `step_kernels`, `step_launches`,
  `step_device_seconds`, `step_kernel_seconds`, `profiler_dispatch_ratio` and the memory gauges stay absent
  on a CPU.
- *until known*: informations, which have no zero.
- *never*: there from the first scrape, at 0."""

BUCKETS = """\
## Buckets

Upper boundaries in seconds; `+Inf` is always added. They are constants in
`service/front/metrics/catalogue.py`, and nowhere
else: change them there, restart the service, and renew this page with `make dashboards`. The boards offer the
boundaries of `request_duration_seconds` as SLO. Those of requests go on (300, 500, 1000, …) until the last is
above `LAUNCHBOUND_REQUEST_TIMEOUT_SECONDS`, so no request that ended well is in `+Inf` alone."""

PROCESS = """\
## Of the front process

Without a prefix, from `prometheus_client`'s own collectors. They describe the front process; the engine is
another process, and its device memory is above."""


def page() -> str:
    """The whole page."""
    columns = ("name", "type", "labels", "unit", "meaning", "absent")
    parts = [
        INTRODUCTION,
        _table(columns, map(_line, CATALOGUE)),
        "## Labels",
        _table(("label", "values"), _labels()),
        ABSENCE,
        BUCKETS,
        _table(("metrics", "boundaries"), _buckets()),
        PROCESS,
        _table(("name", "type", "meaning"), _of_the_process()),
    ]
    return "\n\n".join(parts) + "\n"


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
    yield "others", "of informations: one value each while the engine runs"


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
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m service.front.metrics.page", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="write docs/metrics.md")
    what.add_argument("--check", action="store_true", help="write nothing; fail where it is not current")
    if parser.parse_args(arguments).write:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page():
        print(f"not current: {PAGE.name}; run: python -m service.front.metrics.page --write", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
