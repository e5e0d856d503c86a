"""What batching costs at a low load: `python -m loadtests.batching_cost URL`, or `OFF_URL BATCHED_URL`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from loadtests.batching_cost.measure import measure
from loadtests.run.document_file import write_result
from loadtests.run.target import TargetError

RATIOS = ("times_as_long", "mean_times_as_long", "apart_times_as_long", "cost")
RESULT_FILE = "batching_cost-{mode}.json"


def text(document: dict[str, Any]) -> str:
    """The summary, in one line of Markdown's table."""
    found = document["summary"]
    ms = {name: f"{1e3 * found[f'{name}_median_seconds']:.1f}" for name in ("off", "batched")}
    load = "–" if document["load_found"] is None else f"{document['load_found']:.0%}"
    ratios = " | ".join(_words(found[name]) for name in RATIOS)
    return "\n".join(
        [
            "| mode | requests/s | load | off, ms | batched, ms | effective batch "
            "| median, times as long | mean | those that met nobody | cost of batching |",
            "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
            f"| {document['request']['mode']} | {found['rate']:.1f} | {load} "
            f"| {ms['off']} | {ms['batched']} | {found['effective_batch']:.2f} | {ratios} |",
        ]
    )


def _words(ratio: dict[str, Any] | None) -> str:
    if ratio is None:
        return "–"
    ends = "" if ratio["high"] is None else f" ({ratio['low']:.3f}–{ratio['high']:.3f})"
    return f"{ratio['value']:.3f}{ends}"


def main(arguments: list[str]) -> int:
    """Measure, print the table and write the document; returns the exit code, 2 for unusable addresses."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.batching_cost", description=__doc__)
    parser.add_argument(
        "off", help="a service that merges, to be asked for requests alone, too; or one without batching"
    )
    parser.add_argument("batched", nargs="?", help="in the second case: one that merges")
    parser.add_argument("--mode", default="eager")
    parser.add_argument("--load", type=float, default=0.3, help="share of what `off` can serve, below 1")
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--requests", type=int, default=40, help="of each visit")
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--out", type=Path, help="folder to write the document to")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.requests < 1 or not 0 < options.load < 1:
        parser.error("--rounds and --requests: at least one; --load: between 0 and 1")
    try:
        document = measure(
            options.off,
            options.batched or options.off,
            options.mode,
            options.load,
            options.rounds,
            options.requests,
            options.new_tokens,
            tell=lambda line: print(line, file=sys.stderr),
        )
    except TargetError as error:
        print(f"launchbound: {error}", file=sys.stderr)
        return 2
    print(text(document))
    if options.out is not None:
        write_result(options.out, RESULT_FILE.format(mode=options.mode), document)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
