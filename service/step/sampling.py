"""Temperature, top-k, top-p, seed: the same eager operators after the step in every mode."""

from __future__ import annotations

from time import perf_counter_ns

import torch
from torch import Tensor

from service.records import Job
from service.step.meters import Readings

GREEDY_BELOW = 1e-5
"""A temperature below this is greedy: dividing by it would leave float32's range, and choose the same."""


class Sampler:
    """Chooses one job's next tokens; for greedy decoding it runs no operator at all.

    Only the job's own rows are sampled, so that a seed gives the same text whatever bucket pads the batch.
    """

    def __init__(self, job: Job, device: torch.device) -> None:
        self._temperature = job.temperature if job.temperature >= GREEDY_BELOW else 0.0
        self._top_k = job.top_k
        self._top_p = job.top_p
        self._rows = len(job.prompts)
        self._generator: torch.Generator | None = None
        if job.seed is not None:
            self._generator = torch.Generator(device).manual_seed(job.seed)

    @property
    def looks_at_logits(self) -> bool:
        """Whether the next token may be another than the greedy one."""
        return self._temperature != 0.0

    def choose(self, logits: Tensor, greedy: Tensor, readings: Readings) -> Tensor:
        """Next tokens, int64 [bucket], from logits [bucket, vocabulary] and their argmax [bucket]. The host
        time of the sampling operators goes to `readings.sampling`; it counts as dispatch.
        """
        if not self.looks_at_logits:
            return greedy
        began = perf_counter_ns()
        tokens = self._draw(logits, greedy)
        readings.sampling.append(perf_counter_ns() - began)
        return tokens

    def _draw(self, logits: Tensor, greedy: Tensor) -> Tensor:
        """Next tokens, int64 [bucket]: the job's rows sampled, those of padding greedy."""
        scores = logits[: self._rows].float() / self._temperature
        if self._top_k is not None and self._top_k < scores.shape[-1]:
            threshold = scores.topk(self._top_k, dim=-1).values[:, -1:]
            scores = scores.masked_fill(scores < threshold, -torch.inf)
        probabilities = scores.softmax(dim=-1)
        if self._top_p is None or self._top_p >= 1.0:
            drawn = torch.multinomial(probabilities, 1, generator=self._generator)
        else:
            likeliest, order = nucleus(probabilities, self._top_p)
            drawn = order.gather(-1, torch.multinomial(likeliest, 1, generator=self._generator))
        return torch.cat((drawn.squeeze(1), greedy[self._rows :]))


def nucleus(probabilities: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """The fewest likeliest tokens whose probabilities reach `top_p`; the others' become 0.

    From probabilities [rows, vocabulary]: what is left of them, likeliest first, and the tokens in that
    order, int64 [rows, vocabulary]. The likeliest always stays. Holtzman et al., 2020, arXiv:1904.09751.
    """
    ordered, order = probabilities.sort(dim=-1, descending=True)
    outside = ordered.cumsum(dim=-1) - ordered >= top_p
    outside[:, 0] = False
    return ordered.masked_fill(outside, 0.0), order
