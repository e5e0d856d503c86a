"""What a plan must be for its results to be comparable."""

from __future__ import annotations

from loadtests.plan.cells import BASELINE, Cell, Plan, PlanError

LOAD_MOST = 3.0
"""Then the queue grows by two in the time that one is answered: more shows nothing else."""


RATE_MOST = 1e6
"""Requests per second. Infinity, which TOML knows, could not be kept."""


def check(plan: Plan) -> Plan:
    """The plan itself. Raises PlanError where its results could not be compared."""
    if not plan.cells or plan.rounds < 1:
        raise PlanError("the plan has no cell or no round: nothing would be measured")
    if plan.rounds_most is not None and plan.rounds_most < plan.rounds:
        raise PlanError(f"rounds_most is {plan.rounds_most}, less than the {plan.rounds} rounds: raise it")
    names = [cell.name for cell in plan.cells]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise PlanError(f"cell '{duplicates[0]}' is in the plan twice: remove one")
    if not any(cell.mode == BASELINE and not cell.control for cell in plan.cells):
        raise PlanError(f"mode '{BASELINE}' is missing: every speed-up is against it, add it to the modes")
    for cell in plan.cells:
        if min(cell.batch_size, cell.new_tokens, cell.concurrency, cell.requests) < 1:
            raise PlanError(f"cell '{cell.name}': batch, tokens, concurrency and requests must be at least 1")
        # The first of a visit wait for fewer: with this many, the median is one that waits for all.
        if not cell.open_loop and cell.requests < (least := 2 * cell.concurrency - 1):
            raise PlanError(
                f"cell '{cell.name}': {cell.requests} requests per visit are over before {cell.concurrency} "
                f"are in flight for long: send at least {least}"
            )
        if fault := _open_loop_fault(plan, cell):
            raise PlanError(f"cell '{cell.name}': {fault}")
    if fault := _relative_slo_fault(plan):
        raise PlanError(fault)
    return plan


def _relative_slo_fault(plan: Plan) -> str | None:
    """Why a multiple of eager's latency cannot be a limit here, and the remedy; None: it can."""
    if plan.slo is None or plan.slo.e2e_of_eager is None:
        return None
    works = {cell.work for cell in plan.cells if cell.open_loop}
    if len(works) == 1:
        return None
    found = "there is no open-loop cell" if not works else f"there are open-loop cells of {len(works)} kinds"
    return f"e2e_of_eager needs one latency of eager, and {found}: give the SLO's e2e in seconds"


def _open_loop_fault(plan: Plan, cell: Cell) -> str | None:
    """What is wrong with its arrivals, and the remedy; None: nothing."""
    if cell.load is not None and cell.rate is not None:
        return "it has a load and a rate of its own: leave one out"
    if cell.load is not None and not 0 < cell.load <= LOAD_MOST:
        return f"load is a share of what the mode can do, above 0 and at most {LOAD_MOST:g}"
    if cell.rate is not None and not 0 < cell.rate <= RATE_MOST:
        return f"rate is in requests per second, above 0 and at most {RATE_MOST:g}"
    if cell.open_loop and cell.new_tokens == 1 and plan.slo is not None and plan.slo.tpot_seconds is not None:
        return "one token has no time per output token: leave tpot out of the SLO, or ask for more tokens"
    return None
