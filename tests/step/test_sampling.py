"""Sampling after the step: the nucleus, and what a greedy job costs."""

from __future__ import annotations

import pytest
import torch

from service.engine.inbox import local_job
from service.step.meters import Readings
from service.step.sampling import Sampler, nucleus


def test_a_nucleus_is_the_fewest_likeliest_tokens_that_reach_top_p() -> None:
    probabilities = torch.tensor([[0.1, 0.5, 0.15, 0.25], [0.97, 0.01, 0.01, 0.01]])
    for top_p, kept in ((0.7, [{1, 3}, {0}]), (0.76, [{1, 2, 3}, {0}]), (0.5, [{1}, {0}]), (0.0, [{1}, {0}])):
        likeliest, order = nucleus(probabilities, top_p)
        rows = zip(likeliest, order, strict=True)
        assert [set(tokens[left > 0].tolist()) for left, tokens in rows] == kept
        assert torch.equal(likeliest[likeliest > 0], probabilities.gather(-1, order)[likeliest > 0])


@pytest.mark.parametrize(("temperature", "timed"), [(0.0, 0), (1e-300, 0), (1.0, 1)])
def test_a_greedy_job_runs_no_operator_of_sampling(temperature: float, timed: int) -> None:
    job = local_job("a", "eager", ["x"], 9, temperature=temperature, seed=1)
    logits, readings = torch.full((4, 5), -100.0), Readings()
    logits[:, 3] = 100.0
    assert (
        Sampler(job, torch.device("cpu")).choose(logits, logits.argmax(dim=-1), readings).tolist() == [3] * 4
    )
    assert len(readings.sampling) == timed
