"""What a fleet would run where, how long that takes and what it costs, as text."""

from __future__ import annotations

from collections.abc import Sequence

from loadtests.fleet.nodes import Asked, lacks, without_device
from loadtests.fleet.record import FleetTask
from loadtests.plan.cells import Plan
from loadtests.plan.presets import estimate_most_seconds, estimate_seconds


def described(name: str, plan: Plan, tasks: Sequence[FleetTask], nodes: Sequence[Asked]) -> str:
    """The tasks with their nodes, then each kind of machine with its time and price.

    The estimates are those of `tiny` in float32 on the reference machine, whatever the task's own are.
    """
    seconds = estimate_seconds(plan)
    most = estimate_most_seconds(plan)
    upto = f" to {_minutes(most)}" if most > seconds else ""
    lines = [
        f"fleet {name}: {len(tasks)} tasks, each the sweep {plan.preset} of {len(plan.cells)} cells, about "
        f"{_minutes(seconds)}{upto} (as of tiny in float32 on the reference machine, without its warm-up)",
        "",
        *(_task(task, nodes) for task in tasks),
        "",
        *(_machine(kind, tasks, nodes, seconds) for kind in dict.fromkeys(task.machine for task in tasks)),
    ]
    return "\n".join(lines)


def _task(task: FleetTask, nodes: Sequence[Asked]) -> str:
    where = ", ".join(one.node.name for one in nodes if one.said is None and one.node.fits(task))
    why = lacks(task, nodes)
    if why is None:
        return f"  {task.name:<40} on {where}"
    return f"  {task.name:<40} {'left out' if without_device(task, nodes) else 'CANNOT RUN NOW'}: {why}"


def _machine(kind: str, tasks: Sequence[FleetTask], nodes: Sequence[Asked], seconds: float) -> str:
    """Tasks of one kind take turns on its machines."""
    own = [task for task in tasks if task.machine == kind and lacks(task, nodes) is None]
    machines = {
        one.facts.machine for one in nodes if one.said is None and one.facts and one.node.kind == kind
    }
    if not own or not machines:
        return f"  {kind}: nothing can run"
    in_all = seconds * -(-len(own) // len(machines))
    price = own[0].price
    cost = (
        "no price"
        if price is None
        else f"about ${len(own) * seconds / 3600 * price:.2f} at ${price:g} per hour"
    )
    return f"  {kind}: {len(own)} tasks on {len(machines)} machines, about {_minutes(in_all)}, {cost}"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min"
