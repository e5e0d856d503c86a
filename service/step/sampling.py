"""Temperature, top-k and seed: the same eager operators after the step in every mode."""

from __future__ import annotations

from time import perf_counter_ns

import torch
from torch import Tensor

from service.border.messages import Job
from service.step.meters import Readings


class Sampler:
    """Chooses one job's next tokens; greedy where the temperature is 0, and then no operator runs at all.

    Only the job's own rows are sampled, so that a seed gives the same text whatever bucket pads the batch.
    """

    def __init__(self, job: Job, device: torch.device) -> None:
        self._temperature, self._top_k, self._rows = job.temperature, job.top_k, len(job.prompts)
        self._generator: torch.Generator | None = None
        if job.seed is not None:
            self._generator = torch.Generator(device).manual_seed(job.seed)

    def choose(self, logits: Tensor, greedy: Tensor, readings: Readings) -> Tensor:
        """Next tokens, int64 [bucket], from logits [bucket, vocabulary] and their argmax [bucket].

        The host time of the sampling operators goes to `readings.sampling`; it counts as dispatch.
        """
        if self._temperature == 0.0:
            return greedy
        began = perf_counter_ns()
        scores = logits[: self._rows].float() / self._temperature
        if self._top_k is not None and self._top_k < scores.shape[-1]:
            threshold = scores.topk(self._top_k, dim=-1).values[:, -1:]
            scores = scores.masked_fill(scores < threshold, -torch.inf)
        drawn = torch.multinomial(scores.softmax(dim=-1), 1, generator=self._generator).squeeze(1)
        tokens = torch.cat((drawn, greedy[self._rows :]))
        readings.sampling.append(perf_counter_ns() - began)
        return tokens
