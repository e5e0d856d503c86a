"""A whole engine that merges requests: one outcome each, and a split of the steps by their buckets."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.engine.inbox import local_job
from tests.engine.serving import PROMPT, serve

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("restored_globals")]

JOBS = [
    local_job(f"{mode}{n}", mode, [PROMPT], 4 + 3 * n, ignore_eos=True, profile=n == 2)
    for mode in ("eager", "inference_mode")
    for n in range(4)
]


def test_merged_requests_are_answered_as_they_are_alone(tmp_path: Path) -> None:
    merged = serve(tmp_path, JOBS, batching="continuous")
    tokens = {outcome.id: outcome.outputs[0].token_ids for outcome in merged.outcomes}
    assert tokens.keys() == {job.id for job in JOBS}
    # All have the same prompt, and those of index 2 run alone, under the profiler.
    assert tokens["eager2"] == tokens["inference_mode2"]
    assert all(longer[: len(own)] == own for own in tokens.values() for longer in [tokens["eager3"]])
    assert merged.modes["eager"].state == "ready"
    shared = {outcome.id: outcome.timings.shared for outcome in merged.outcomes if outcome.timings}
    assert all(work is None for name, work in shared.items() if name.endswith("2"))
    assert all(work is not None and work.rows > 1 for name, work in shared.items() if name[-1] in "01")
    for outcome in merged.outcomes:
        assert outcome.timings is not None
        for phase in (outcome.timings.prefill, outcome.timings.decode):
            assert phase.wall_seconds is not None
            assert phase.dispatch_seconds is not None
            assert phase.kernel_seconds is not None
            assert 0 <= phase.dispatch_seconds <= phase.wall_seconds
            assert phase.dispatch_seconds + phase.kernel_seconds == pytest.approx(phase.wall_seconds)
        assert outcome.timings.dispatch_source == "sampled"
        assert outcome.timings.prefill.samples_of == "traffic"
