"""`make chaos`: breaks a service in every way listed in `faults`, and prints and keeps what came of it.

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
from tests.chaos.table import Row, new_chaos, new_folder, row, row_without, shown, write
from tests.chaos.victim import Fault, NotPossible

EXIT_AMISS, EXIT_BAD_INPUT, EXIT_STOPPED = 1, 2, 130
SOAK_SECONDS = 120.0


def run(fault: Fault, folder: Path) -> Row:
    """One fault in `folder`, which is its own; what it raises is what happened."""
    folder.mkdir()
    try:
        return row(fault, fault.run(folder))
    except NotPossible as lacking:
        return row_without(fault, str(lacking), "not possible here")
    except Exception as error:  # noqa: BLE001 - the row of this fault; the others are run all the same
        said = str(error).splitlines() or [""]
        return row_without(fault, f"{type(error).__name__}: {said[0][:300]}", "NOT SO")


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


def run_all(faults: Sequence[Fault], console: Console) -> list[Row]:
    """One after the other; a line for each as it ends. Stopped by Ctrl-C, those that have ended."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="launchbound-chaos-", ignore_cleanup_errors=True) as root:
        try:
            for fault in faults:
                rows.append(run(fault, Path(root, re.sub(r"\W+", "-", fault.name))))
                last = rows[-1]
                said = f"{last.fault}: {last.happened} ({shown(last.seconds)} s): {last.verdict}"
                console.print(said, highlight=False, markup=False)
        except KeyboardInterrupt:
            console.print("stopped")
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen faults, one after another."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--only", default="", help="faults whose name contains one of these: NAME,NAME")
    parser.add_argument(
        "--soak", type=float, default=SOAK_SECONDS, help="seconds of mixed load; 1800: in full"
    )
    parser.add_argument("--out", type=Path, help="folder of the table; default results/chaos-<UTC>-<commit>")
    given = parser.parse_args(arguments)
    faults = all_faults(given.soak)
    try:
        wanted = chosen(faults, given.only)
    except ValueError as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_INPUT
    console = Console(width=140)
    with ended_in_order():
        rows = run_all(wanted, console)
    chaos = new_chaos(rows, given.soak, complete=len(rows) == len(faults))
    folder = given.out or new_folder(chaos.environment["commit"])
    write(chaos, folder)
    console.print(f"written to {folder}", highlight=False)
    if len(rows) < len(wanted):
        return EXIT_STOPPED
    return EXIT_AMISS if any(one.verdict == "NOT SO" for one in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
