"""Stands for `launchbound sweep` on a node: writes a small results folder at once, or waits to be killed.

Its arguments are a folder CONTROL and the options of a sweep. In CONTROL it leaves `NAME.begun` and
`NAME.ended` with the time. The first to find a file `hold` there renames it `held` and waits on the fifo
`never` beside it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from time import monotonic

from loadtests.plan.plan_file import parse_plans, plan_of
from tests.support.made_results import edit_run, make_results

ROOT = Path(__file__).parents[3]


def command(control: Path) -> tuple[str, ...]:
    """What `python` runs it by, from any folder."""
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import tests.loadtests.fleet.fake_sweep as fake"
    )
    return "-c", f"{program}; sys.exit(fake.main(sys.argv[1:]))", str(control)


def main(arguments: list[str]) -> int:
    """Do as the module says; returns the exit code."""
    control = Path(arguments[0])
    options = dict(argument.removeprefix("--").split("=", 1) for argument in arguments[1:])
    name = f"{options['model']}-{options['device']}-{options['dtype']}-{os.getpid()}"
    (control / f"{name}.begun").write_text(repr(monotonic()))
    if claimed(control / "hold", control / "held"):
        with (control / "never").open() as never:  # no one writes: it waits until it is killed
            never.read()
    text = Path(options["plan"]).read_text()
    folder = Path(options["out"])
    make_results(folder, plan=plan_of(parse_plans(text)[0]))
    edit_run(folder, lambda run: run.engine.update(model=options["model"], dtype=options["dtype"]))
    (control / f"{name}.ended").write_text(repr(monotonic()))
    print("the report is written")
    print('{"path": "results", "headline": null, "valid": true}', flush=True)
    return 0


def claimed(path: Path, taken: Path) -> bool:
    """Whether this process is the one that renamed `path`."""
    try:
        path.rename(taken)
    except FileNotFoundError:
        return False
    return True


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
