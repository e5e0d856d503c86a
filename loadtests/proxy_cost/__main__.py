"""What Ray Serve's proxy adds to a request: `python -m loadtests.proxy_cost PROXY_URL DIRECT_URL`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from loadtests.proxy_cost.pairs import measure
from loadtests.run.document_file import write_result
from loadtests.run.target import TargetError

RESULT_FILE = "proxy_cost.json"


def text(document: dict[str, Any]) -> str:
    """The summary in milliseconds, as a table of Markdown."""
    found = document["summary"]
    lines = ["| | p50, ms | 95 % |", "|---|---:|---:|"]
    for label, name in (
        ("direct", "direct_seconds"),
        ("by the proxy", "proxy_seconds"),
        ("added, of each pair", "added_seconds"),
        ("added outside of what the service took", "added_outside_seconds"),
    ):
        one = found[name]
        ends = "–" if one["low"] is None else f"{1e3 * one['low']:.2f} to {1e3 * one['high']:.2f}"
        lines.append(f"| {label} | {1e3 * one['value']:.2f} | {ends} |")
    return "\n".join([*lines, "", f"share of a request by the proxy: {found['added_share']:.1%}"])


def main(arguments: list[str]) -> int:
    """Measure, print the table and write the document; returns the exit code, 2 for unusable addresses."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.proxy_cost", description=__doc__)
    parser.add_argument("proxy")
    parser.add_argument("direct")
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--mode", default="inference_mode")
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument("--out", type=Path, help=f"folder to write {RESULT_FILE} to")
    options = parser.parse_args(arguments)
    if options.pairs < 1:
        parser.error("--pairs: at least one")
    try:
        document = measure(options.proxy, options.direct, options.pairs, options.mode, options.new_tokens)
    except TargetError as error:
        print(f"launchbound: {error}", file=sys.stderr)
        return 2
    print(text(document))
    if options.out is not None:
        write_result(options.out, RESULT_FILE, document)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
