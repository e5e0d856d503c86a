"""`make chaos`: breaks a service in every way listed in `faults`, and prints what came of it.

Exit code 1 where something did not happen as it must. Only processes that it started are touched, by pid.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.chaos.fault import Fault, Happened
from tests.chaos.faults import FAULTS


def run(fault: Fault) -> Happened:
    """One fault in a folder of its own; what it raises is what happened."""
    with tempfile.TemporaryDirectory(prefix="launchbound-chaos-") as folder:
        try:
            return fault.run(Path(folder))
        except AssertionError as error:
            return Happened(str(error).splitlines()[0], float("nan"), as_must=False)


def main() -> int:
    """Run the chosen faults, one after another."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--only", default="", help="run the faults whose name contains this")
    chosen = [fault for fault in FAULTS if parser.parse_args().only in fault.name]
    console = Console(width=140)
    table = Table("fault", "what must happen", "what happened", "seconds", "")
    failed = 0
    for fault in chosen:
        happened = run(fault)
        failed += not happened.as_must
        verdict = "as it must" if happened.as_must else "NOT SO"
        table.add_row(fault.name, fault.must, happened.words, f"{happened.seconds:.1f}", verdict)
        console.print(f"{fault.name}: {happened.words} ({happened.seconds:.1f} s): {verdict}")
    console.print(table)
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
