"""What batching costs at a low load: `python -m loadtests.batching_cost URL`, or `OFF_URL BATCHED_URL`.

`FOLDER FOLDER …` says it by all rounds of earlier measurements.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtests.batching_cost.measure import RESULT_FILE, measure
from loadtests.batching_cost.together import read, together
from loadtests.run.document_file import write_result
from loadtests.run.target import TargetError

RATIOS = ("times_as_long", "mean_times_as_long", "apart_times_as_long", "cost")
HEAD = (
    "| mode | rounds | requests/s | load | off, ms | batched, ms | effective batch "
    "| median, times as long | mean | those that met nobody | cost of batching |",
    "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
)


def text(documents: Sequence[dict[str, Any]]) -> str:
    """The summary of each, in lines of a table in Markdown."""
    return "\n".join([*HEAD, *map(_line, documents)])


def _line(document: dict[str, Any]) -> str:
    mode, found = document["request"]["mode"], document["summary"]
    ms = {name: f"{1e3 * found[f'{name}_median_seconds']:.1f}" for name in ("off", "batched")}
    load = "–" if document["load_found"] is None else f"{document['load_found']:.0%}"
    ratios = " | ".join(_words(found[name]) for name in RATIOS)
    return (
        f"| {mode} | {found['times_as_long']['samples']} | {found['rate']:.1f} | {load} "
        f"| {ms['off']} | {ms['batched']} | {found['effective_batch']:.2f} | {ratios} |"
    )


def _words(ratio: dict[str, Any] | None) -> str:
    if ratio is None:
        return "–"
    ends = "" if ratio["high"] is None else f" ({ratio['low']:.3f}–{ratio['high']:.3f})"
    return f"{ratio['value']:.3f}{ends}"


def main(arguments: list[str]) -> int:
    """Measure, or put together; print the table and write the document of what was measured.

    Returns the exit code: 2 for addresses or folders that cannot be used.
    """
    parser = argparse.ArgumentParser(prog="python -m loadtests.batching_cost", description=__doc__)
    parser.add_argument(
        "of",
        nargs="+",
        help="a service that merges, to be asked for requests alone, too; or one without batching and then "
        "one that merges; or folders that --out has written, of one --mode: their rounds are put together",
    )
    parser.add_argument("--mode", default="eager")
    parser.add_argument("--load", type=float, default=0.3, help="share of what `off` can serve, below 1")
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--requests", type=int, default=40, help="of each visit")
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--out", type=Path, help="folder to write the document to")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.requests < 1 or not 0 < options.load < 1:
        parser.error("--rounds and --requests: at least one; --load: between 0 and 1")
    folders = [Path(one) for one in options.of if Path(one).is_dir()]
    if len(folders) not in (0, len(options.of)) or len(options.of) > 2 > len(folders):
        parser.error("either one address or two, or folders only")
    if folders and options.out is not None:
        parser.error("--out is for what is measured: rounds that are put together stay where they are")
    try:
        documents = _earlier(folders, options.mode) if folders else [_measured(options)]
    except TargetError as error:
        print(f"launchbound: {error}", file=sys.stderr)
        return 2
    print(text(documents))
    if options.out is not None:
        write_result(options.out, RESULT_FILE.format(mode=options.mode), documents[0])
    return 0


def _earlier(folders: Sequence[Path], mode: str) -> list[dict[str, Any]]:
    """Each, and all of them together."""
    documents = [read(folder, mode) for folder in folders]
    return [*documents, together(documents)]


def _measured(options: argparse.Namespace) -> dict[str, Any]:
    return measure(
        options.of[0],
        options.of[-1],
        options.mode,
        options.load,
        options.rounds,
        options.requests,
        options.new_tokens,
        tell=lambda line: print(line, file=sys.stderr),
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
