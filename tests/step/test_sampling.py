"""Sampling after the step: which tokens are drawn, the nucleus, and what it costs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

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


LIMITS: list[dict[str, Any]] = [{}, {"top_k": 7}, {"top_p": 0.8}, {"top_k": 40, "top_p": 0.9}]


def sampler(rows: int, **options: Any) -> Sampler:
    return Sampler(local_job("a", "eager", ["x"] * rows, 9, **options), torch.device("cpu"))


def by_multinomial(logits: Tensor, seed: int, top_k: int = 10**6, top_p: float = 1.0) -> list[int]:
    """As torch draws from what the limits leave of `logits`, [rows, vocabulary], at a temperature of 0.7."""
    scores = logits.float() / 0.7
    threshold = scores.topk(min(top_k, scores.shape[-1])).values[:, -1:]
    probabilities = scores.where(scores >= threshold, -torch.inf).softmax(dim=-1)
    generator = torch.Generator().manual_seed(seed)
    if top_p == 1.0:
        return torch.multinomial(probabilities, 1, generator=generator).squeeze(-1).tolist()
    likeliest, order = nucleus(probabilities, top_p)
    return order.gather(-1, torch.multinomial(likeliest, 1, generator=generator)).squeeze(-1).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_a_seed_draws_what_multinomial_draws_and_nothing_of_probability_0(
    limits: dict[str, Any], dtype: torch.dtype
) -> None:
    logits = torch.randn(4, 500, generator=torch.Generator().manual_seed(1)).to(dtype)
    logits[:, ::2] = -torch.inf
    before, greedy = logits.clone(), logits.argmax(dim=-1)
    for seed in range(50):
        made = sampler(3, temperature=0.7, seed=seed, **limits)
        tokens = made.choose(logits, greedy, Readings()).tolist()
        assert tokens == [*by_multinomial(logits[:3], seed, **limits), greedy[3]]
        assert all(token % 2 for token in tokens)
    assert torch.equal(logits, before)


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("rows", [3, 4])
def test_no_operator_of_sampling_reads_the_device_or_copies_a_number_to_it(
    limits: dict[str, Any], rows: int
) -> None:
    logits = torch.randn(4, 500)
    made, greedy = sampler(rows, temperature=0.7, seed=1, **limits), logits.argmax(dim=-1)
    with profile(activities=[ProfilerActivity.CPU]) as session:
        made.choose(logits, greedy, Readings())
    names = {event.name for event in session.events()}
    assert "aten::exponential_" in names
    of_the_host = {"_local_scalar_dense", "nonzero", "lift_fresh", "scalar_tensor"}
    assert not names & {f"aten::{name}" for name in of_the_host}
