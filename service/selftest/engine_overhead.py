"""The engine's time per job outside its steps, measured in process without a front."""

from __future__ import annotations

from collections import defaultdict
from statistics import median

import msgspec
import torch

from service.engine.inbox import Inbox
from service.engine.local_inbox import local_job
from service.engine.loop import Engine
from service.measure.rounds import Log
from service.measure.variants import Variants
from service.protocol.messages import Outcome
from service.selftest.checks import NEW_TOKENS, PROMPT
from service.selftest.front_socket import JobSender, front_socket

UNCOUNTED = 2
"""First jobs per mode that are run and not counted."""

JOBS = 20


def overhead_seconds(variants: Variants, log: Log) -> dict[str, float]:
    """Median seconds by mode between a job's arrival and its end that are neither steps nor tokenising.

    The engine runs here, with its real inbox; a thread at the other end sends one job after another. Raises
    what the engine raises, and RuntimeError where it ended before its last job.
    """
    settings = msgspec.structs.replace(
        variants.settings, batch_sizes=[1], profile_every=0, instrumentation="full"
    )
    jobs = [
        local_job(f"overhead-{number}-{mode}", mode, [PROMPT], NEW_TOKENS, ignore_eos=True)
        for number in range(JOBS)
        for mode in variants.modes
    ]
    with front_socket() as (address, front):
        sender = JobSender(front, jobs, log)
        inbox = Inbox(address)
        sender.start()
        try:
            with variants.isolated():
                Engine(settings, inbox).run()
        finally:
            torch.compiler.set_stance("default")
            inbox.close()
            sender.join()
        outcomes = sender.outcomes()
    return by_mode(outcomes[UNCOUNTED * len(variants.modes) :])


def by_mode(outcomes: list[Outcome]) -> dict[str, float]:
    """Median overhead by mode. Raises RuntimeError for an outcome of a job that did not run."""
    found: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        found[outcome.mode].append(_overhead(outcome))
    return {mode: median(values) for mode, values in found.items()}


def _overhead(outcome: Outcome) -> float:
    timings = outcome.timings
    if timings is None:
        raise RuntimeError(f"job {outcome.id} did not run: {outcome.problem}")
    walls = (timings.prefill.wall_seconds or 0.0) + (timings.decode.wall_seconds or 0.0)
    return (timings.done_ns - timings.taken_ns) / 1e9 - walls - timings.tokenise_seconds
