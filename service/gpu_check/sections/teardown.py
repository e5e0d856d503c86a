"""Section `teardown`: a profiler that lets go of the process after each session.

Does it give replayed graphs their dispatch back, and do they compute after it what they did before? If so on
the GPUs in use, `TEARDOWN_CUPTI=1` could be the default (docs/decisions/cuda.md).
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

from service.gpu_check.rows import Rows, own_rows
from service.gpu_check.sections.profiler import BATCH, STEPS, dispatch_seconds
from service.measure.cases import Bench, Case
from service.protocol.messages import EngineSettings
from service.step.process_state import prepare_process
from service.step.profiling import record_steps
from service.step.trace import LAUNCH_CALLS, complete_events

MODES = ("reduce-overhead", "cuda-graph")
SESSIONS = 3


def main(rows: Rows) -> None:
    """A row per mode before the first session and after each; then one per mode of a graph made after all."""
    rows.write("plan", modes=MODES, sessions=SESSIONS)
    os.environ["TEARDOWN_CUPTI"] = "1"
    cache = os.environ["LAUNCHBOUND_CACHE_FOLDER"]
    prepare_process(cache)
    settings = EngineSettings(
        address="", device="cuda", modes=list(MODES), batch_sizes=[BATCH], cache_folder=cache
    )
    bench = Bench(settings)
    cases = {mode: bench.case(mode, BATCH) for mode in MODES}
    expected = {mode: _logits(bench, case) for mode, case in cases.items()}
    for sessions in range(SESSIONS + 1):
        launches = {mode: _profiled(bench, case) if sessions else None for mode, case in cases.items()}
        for mode, case in cases.items():
            rows.write(
                "let_go",
                mode=mode,
                sessions=sessions,
                launches=launches[mode],
                dispatch_seconds=dispatch_seconds(bench, case),
                same=torch.equal(_logits(bench, case), expected[mode]),
            )
    for mode in MODES:
        made = _logits(bench, Bench(settings).case(mode, BATCH))
        rows.write("made_after", mode=mode, same=torch.equal(made, expected[mode]))


def _profiled(bench: Bench, case: Case) -> int:
    """Launch calls that a session over some steps has seen."""
    events = complete_events(record_steps(bench.device, case.call, STEPS))
    return sum(event["name"] in LAUNCH_CALLS for event in events)


def _logits(bench: Bench, case: Case) -> Tensor:
    """A copy, because the next replay overwrites the step's own."""
    logits = case.call()[0].clone()
    bench.synchronise()
    return logits


if __name__ == "__main__":
    main(own_rows())
