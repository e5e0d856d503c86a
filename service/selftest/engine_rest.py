"""What an engine does for one job outside its steps, measured without a front: a piece of `other`."""

from __future__ import annotations

from collections import defaultdict
from statistics import median

import msgspec
import torch

from service.border.messages import Outcome
from service.engine.local import LocalMailbox, local_job
from service.engine.process import Engine
from service.selftest.lab import Lab
from service.selftest.rounds import Say
from service.selftest.workload import NEW_TOKENS, PROMPT

JOBS = 20


def engine_seconds(lab: Lab, say: Say) -> dict[str, float]:
    """Median seconds by mode between a job taken and done that are neither steps nor tokenising."""
    settings = msgspec.structs.replace(lab.settings, batch_sizes=[1], profile_every=0, instrumentation="full")
    jobs = [
        local_job(f"rest-{number}-{mode}", mode, [PROMPT], NEW_TOKENS, ignore_eos=True)
        for number in range(JOBS)
        for mode in lab.modes
    ]
    mailbox = LocalMailbox(jobs, lambda message: say("an engine without a front"))
    try:
        Engine(settings, mailbox).run()
    finally:
        torch.compiler.set_stance("default")
    found: dict[str, list[float]] = defaultdict(list)
    for outcome in mailbox.outcomes[2 * len(lab.modes) :]:
        found[outcome.mode].append(_rest(outcome))
    return {mode: median(values) for mode, values in found.items()}


def _rest(outcome: Outcome) -> float:
    timings = outcome.timings
    if timings is None:
        raise RuntimeError(f"job {outcome.id} did not run: {outcome.problem}")
    walls = (timings.prefill.wall_seconds or 0.0) + (timings.decode.wall_seconds or 0.0)
    return (timings.done_ns - timings.taken_ns) / 1e9 - walls - timings.tokenise_seconds
