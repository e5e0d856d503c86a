"""A fleet over two simulated nodes of this machine, one of which is killed during its sweep and joins again.

`python -m tests.support.two_node_fleet OUT [--sweep quick | --smallest]`: the report is in OUT. The sweeps
are real ones, one after the other, since both nodes are one machine.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from loadtests.fleet.plan import Fleet, read_fleet_plan
from loadtests.fleet.report import PAGE_FILE, make_fleet_report
from loadtests.fleet.run import begin
from loadtests.run.rows import ROWS_FILE
from service.replicas.cluster import connected, environment
from tests.support.serving import until
from tests.support.simulated_nodes import simulated_nodes

KINDS = ("first", "second")
WARM_SECONDS = 1800.0
"""A service compiles for minutes where nothing is cached, before there is a row."""

PLAN = """\
name = "two simulated nodes"
machines = ["first", "second"]
"""


SMALLEST = """\
[sweep]
name = "smallest"
modes = ["eager", "inference_mode"]
batch_sizes = [1]
rounds = 2
[[sweep.closed_loop]]
new_tokens = 2
requests = 1
"""


def fleet_with_a_power_cut(plan: Path, out: Path) -> Fleet:
    """Run `plan` on nodes of both KINDS; the first is killed once its sweep has measured a request."""
    cores = os.cpu_count() or 1
    with simulated_nodes() as nodes:
        doomed = nodes.add(KINDS[0], cores)
        nodes.add(KINDS[1], cores)
        # Ray starts nodes from the main thread only.
        os.environ.update(environment(nodes.address))
        with connected(nodes.address) as ray, ThreadPoolExecutor(1) as pool:
            running = pool.submit(begin, ray, read_fleet_plan(plan), out, _said, wait_seconds=120)
            until(lambda: running.done() or _has_measured(), "a measured request", WARM_SECONDS)
            if not running.done():
                _said("the first node is killed, and joins again")
                nodes.kill(doomed)
                nodes.add(KINDS[0], cores)
            return running.result()


def _has_measured() -> bool:
    rows = Path(tempfile.gettempdir()).glob(f"launchbound-fleet-*/sweep/results/{ROWS_FILE}")
    return any('"stage":"measure"' in path.read_text().replace(" ", "") for path in rows)


def _said(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    """Run the fleet and write its report; returns 0, or 1 where a task failed or no node was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sweep", default="quick", help="a preset, or a plan file by its absolute path")
    parser.add_argument("--smallest", action="store_true", help="two modes, two rounds: does it work at all")
    options = parser.parse_args()
    sweep = SMALLEST if options.smallest else f'sweep = "{options.sweep}"\n'
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as plan:
        plan.write(PLAN + sweep)
        plan.flush()
        fleet = fleet_with_a_power_cut(Path(plan.name), options.out)
    found = make_fleet_report(options.out)
    _said(found["headline"])
    for task in fleet.tasks:
        _said(f"{task.name}: {task.state} at try {len(task.tries)}, control plane {task.control_seconds} s")
    _said(f"page: {options.out / PAGE_FILE}")
    lost = [len(task.tries) for task in fleet.tasks] == [2, 1]
    return 0 if lost and all(task.state == "complete" for task in fleet.tasks) else 1


if __name__ == "__main__":
    raise SystemExit(main())
