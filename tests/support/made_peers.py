"""A made comparison with rivals, for tests of what is made of it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from loadtests.peers.results import CallRow, Contestant, PeersRun
from tests.support import fake_service


def made_run(seconds: dict[str, float], rounds: int = 12, differing: Sequence[str] = ()) -> PeersRun:
    """A comparison at batch 1 whose contestants took about `seconds`, every round off by its own factor."""
    random = Random(1)
    run = PeersRun(
        started="now", model="tiny", model_hash="h", parameters=1, prompt_tokens=30, new_tokens=32,
        batches=[1], rounds=rounds, calls=1, requests=1, seed=0, cpus=[1],
    )  # fmt: skip
    for name in seconds:
        kind = "mode" if name in fake_service.STEP_SECONDS else "runtime"
        run.contestants.append(
            Contestant(name=name, kind="mode" if kind == "mode" else "runtime", outside_pytorch=name == "ort")
        )
    for number in range(rounds):
        machine = random.uniform(0.5, 2.0)
        for name, value in seconds.items():
            noisy = value * machine * random.uniform(0.99, 1.01)
            different = "row 0, token 1: 2 instead of 3" if name in differing else None
            run.rows.append(
                CallRow(round=number, contestant=name, batch=1, seconds=[noisy], difference=different)
            )
    return run
