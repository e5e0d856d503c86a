"""`make chaos`: breaks a service in every way listed in `faults`, and prints what came of it.

Exit code 1 where something did not happen as it must, 2 for a name that no fault has. Only processes that it
started are touched, by pid; they end with it.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from service.cli.options import ended_in_order
from tests.chaos.faults import all_faults
from tests.chaos.victim import Fault, NotPossible

EXIT_AMISS, EXIT_BAD_INPUT, EXIT_STOPPED = 1, 2, 130
SOAK_SECONDS = 120.0
AMISS = "NOT SO"


def run(fault: Fault, folder: Path) -> tuple[str, str]:
    """What came of one fault in `folder`, and the verdict; what it raises is what happened."""
    folder.mkdir()
    try:
        happened = fault.run(folder)
    except NotPossible as lacking:
        return str(lacking), "not possible here"
    except Exception as error:  # noqa: BLE001 - what came of this fault; the others are run all the same
        said = str(error).splitlines() or [""]
        return f"{type(error).__name__}: {said[0][:300]}", AMISS
    return f"{happened.words} ({happened.seconds:.1f} s)", "as it must" if happened.as_must else AMISS


def chosen(faults: Sequence[Fault], only: str) -> list[Fault]:
    """The faults whose name contains one of `only`, which is separated by commas; all without.

    Raises ValueError, with all names, for a part that no name contains.
    """
    parts = [part.strip() for part in only.split(",") if part.strip()]
    for part in parts:
        if not any(part in fault.name for fault in faults):
            names = "\n  ".join(fault.name for fault in faults)
            raise ValueError(f"no fault has '{part}' in its name; there are\n  {names}")
    return [fault for fault in faults if not parts or any(part in fault.name for part in parts)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen faults one after another, with a line for each as it ends."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--only", default="", help="faults whose name contains one of these: NAME,NAME")
    parser.add_argument(
        "--soak", type=float, default=SOAK_SECONDS, help="seconds of mixed load; 1800: in full"
    )
    given = parser.parse_args(arguments)
    try:
        wanted = chosen(all_faults(given.soak), given.only)
    except ValueError as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_INPUT
    console, verdicts = Console(width=140), set[str]()
    with (
        ended_in_order(),
        tempfile.TemporaryDirectory(prefix="launchbound-chaos-", ignore_cleanup_errors=True) as root,
    ):
        try:
            for fault in wanted:
                words, verdict = run(fault, Path(root, re.sub(r"\W+", "-", fault.name)))
                verdicts.add(verdict)
                line = f"{fault.name} (must: {fault.must}): {words}: {verdict}"
                console.print(line, highlight=False, markup=False)
        except KeyboardInterrupt:
            console.print("stopped")
            return EXIT_STOPPED
    return EXIT_AMISS if AMISS in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
