"""Sampling after the step: the nucleus, and the end of text that may not come before `min_tokens`."""

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


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1.0])
def test_an_end_of_text_is_not_chosen_before_min_tokens_and_may_be_then(temperature: float) -> None:
    job = local_job("a", "eager", ["x"], 9, min_tokens=2, temperature=temperature, seed=1)
    sampler = Sampler(job, torch.device("cpu"), ends=[3])
    logits = torch.full((4, 5), -100.0)
    logits[:, 3] = 100.0
    logits[:, 1] = 50.0
    chosen = [sampler.choose(logits, logits.argmax(dim=-1), Readings()).tolist()[0] for _ in range(3)]
    assert chosen == [1, 1, 3]
    assert logits[0, 3] == 100.0


def test_min_tokens_costs_nothing_once_they_are_there_nor_where_the_end_is_ignored() -> None:
    logits = torch.zeros(1, 5)
    for ignore, count in ((False, 2), (True, 0)):
        job = local_job("a", "eager", ["x"], 9, min_tokens=2, ignore_eos=ignore)
        sampler = Sampler(job, torch.device("cpu"), ends=[3])
        readings = Readings()
        for _ in range(4):
            sampler.choose(logits, logits.argmax(dim=-1), readings)
        assert len(readings.sampling) == count
