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
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import gmtime, strftime
from types import FrameType

NEEDED = ("torch", "msgspec", "rich", "numpy", "scipy", "psutil", "safetensors", "tokenizers")

TOTAL_SECONDS = 480.0
"""Of one part, all sections together: a GPU is lent for minutes. The limits of a part sum up to no more."""


@dataclass(frozen=True, slots=True)
class Section:
    """`command` are arguments of the interpreter; `seconds` is its limit, `about` what it finds out.

    It has longer where those before it left some of theirs. `records` False: its output is its result, in
    NAME.out.
    """

    name: str
    seconds: float
    about: str
    command: tuple[str, ...]
    records: bool = True


def _own(name: str, seconds: float, about: str, *arguments: str) -> Section:
    return Section(name, seconds, about, ("-m", "service.proof.gpu_sections", *(arguments or (name,))))


def _verb(name: str, seconds: float, about: str, *arguments: str) -> Section:
    return Section(name, seconds, about, ("launchbound.py", *arguments), records=False)


def parts(folder: str) -> dict[int, tuple[Section, ...]]:
    """The sections of every part, by its number, in the order of what they decide.

    1: all that decides whether the CUDA path works; first results are on disk within a minute. 2: larger
    models, a profiler that lets go, and the studies. 3, into `folder`: the selftest's rows for CUDA, and a
    sweep.
    """
    study = ("--device", "cuda", "--json")
    timeline = ("--timeline", "--mode", "eager", "--against", "reduce-overhead")
    selftest = ("selftest", "--only", "cuda,instrumentation", "--device", "cuda")
    sweep = ("sweep", "--preset", "quick", "--device", "cuda")
    return {
        1: (
            _own("device", 25, "versions, clocks, attention's backend, copy bandwidth"),
            _own("profiler", 55, "kernels by id, by window and by queued replays"),
            _own("ladder", 165, "default modes and cuda-graph, bfloat16", "ladder", "bfloat16"),
            _own("float32", 85, "parity in float32", "ladder", "float32"),
            _own("tests", 150, "tests/gpu"),
        ),
        2: (
            _own("teardown", 60, "a profiler that lets go after each session"),
            _own("sizes", 150, "small and base at batch 1, 32, 128"),
            _verb(
                "timeline", 60, "one step of eager over one of reduce-overhead", "anatomy", *timeline, *study
            ),
            _verb("layers", 60, "what each layer of PyTorch takes", "anatomy", "--layers", *study),
            _verb("budget", 90, "dispatch, kernels and roofline by batch", "anatomy", "--budget", *study),
            _verb("kernels", 60, "the kernels of a step", "anatomy", "--mode", "reduce-overhead", *study),
        ),
        3: (
            _verb("selftest", 130, "the selftest's rows for CUDA", *selftest, "--out", f"{folder}/selftest"),
            _verb("sweep", 350, "the quick sweep", *sweep, "--out", f"{folder}/sweep"),
        ),
    }


def main(arguments: list[str]) -> int:
    """Check, write and print; the exit code: 0 good, 1 something failed or cannot be checked, 2 bad input."""
    options = _options(arguments)
    why = _cannot_check()
    if why:
        print(f"gpu-check: {why}", file=sys.stderr)
        return 1
    # Only now: these imports need the packages just looked for.
    from rich.console import Console

    from service.proof.gpu_runner import conclude, run_sections

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
    parser.add_argument("--seconds", type=float, default=TOTAL_SECONDS, help="limit of all sections together")
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
