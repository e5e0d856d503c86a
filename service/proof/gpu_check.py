"""`make gpu-check`: `python -m service.proof.gpu_check [--part 1|2|3] [--only SECTION,…] [--seconds N]`.

The CUDA path examined in sections, each a process of its own with a time limit. The process that runs them
makes no CUDA context, so that one that a section poisons ends with it.

Results go to `$OUT` if that is set, else to `results/`; compiled code and traces to
`$LAUNCHBOUND_CACHE_FOLDER` if that is set, else to `.cache/gpu-check`, where the next check finds them warm.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from time import gmtime, strftime
from types import FrameType

NEEDED = ("torch", "msgspec", "rich", "numpy", "scipy", "psutil", "safetensors", "tokenizers")


def main(arguments: list[str]) -> int:
    """Check, write and print; the exit code: 0 good, 1 something failed or cannot be checked, 2 bad input."""
    options = _options(arguments)
    why = _cannot_check()
    if why:
        print(f"gpu-check: {why}", file=sys.stderr)
        return 1
    # Only now: these imports need the packages just looked for.
    from rich.console import Console

    from service.proof.gpu_runner import conclude, parts, run_sections

    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, end)
    base = Path(os.environ.get("OUT") or "results")
    name = f"gpu-check-part-{options.part}-{strftime('%Y%m%dT%H%M%SZ', gmtime())}"
    folder = (base / name).resolve()
    folder.mkdir(parents=True)
    sections = parts(str(folder))[options.part]
    if options.only:
        chosen = options.only.split(",")
        known = [section.name for section in sections]
        unknown = [name for name in chosen if name not in known]
        if unknown:
            print(f"gpu-check: no section '{unknown[0]}': try some of {', '.join(known)}", file=sys.stderr)
            return 2
        sections = tuple(section for section in sections if section.name in chosen)
    cache = Path(os.environ.get("LAUNCHBOUND_CACHE_FOLDER") or ".cache/gpu-check")
    checked = run_sections(sections, folder, cache, options.seconds, lambda line: print(line, flush=True))
    judged = None if options.part == 1 and options.only else options.part
    return conclude(checked, folder, judged, Console(width=150))


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu-check", description="Check the CUDA path on a GPU.")
    parser.add_argument(
        "--part", type=int, choices=(1, 2, 3), default=1, help="2: sizes and studies; 3: selftest, sweep"
    )
    parser.add_argument("--only", help="sections, with commas; the goals of part 1 are then not judged")
    parser.add_argument("--seconds", type=float, default=480.0, help="limit of all sections together")
    return parser.parse_args(arguments)


def _cannot_check() -> str | None:
    """Why nothing can be checked here, in one sentence with its remedy; None where it can."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        return f"{sys.executable} lacks {', '.join(missing)}: install them or give another one as PYTHON="
    import torch

    if not torch.cuda.is_available():
        return "torch sees no CUDA device, so nothing can be checked here"
    return None


def end(number: int, frame: FrameType | None) -> None:
    """As an exception, so that the running section is ended on the way out."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
