"""Temperature, top-k, top-p, seed: the same eager operators after the step in every mode."""

from __future__ import annotations

from time import perf_counter_ns

import torch
from torch import Tensor

from service.records import Job
from service.step.meters import Readings

GREEDY_BELOW = 1e-5
"""A temperature below this is greedy: dividing by it would leave float32's range, and choose the same."""

SMALLEST = torch.finfo(torch.float32).tiny


class Sampler:
    """Chooses one job's next tokens; for greedy decoding it runs no operator at all.

    Only the job's own rows are sampled, so that a seed gives the same text whatever bucket pads the batch.
    No operator waits for the device, or copies from the host: what sampling takes is dispatch.
    """

    def __init__(self, job: Job, device: torch.device) -> None:
        self._top_k = job.top_k
        self._top_p = job.top_p
        self._rows = job.batch_size
        self._temperature: Tensor | None = None
        if job.temperature >= GREEDY_BELOW:
            # Of one dimension: logits of any dtype divided by it are float32, without another operator.
            self._temperature = torch.full((1,), job.temperature, dtype=torch.float32, device=device)
        self._generator: torch.Generator | None = None
        if job.seed is not None:
            self._generator = torch.Generator(device).manual_seed(job.seed)

    @property
    def looks_at_logits(self) -> bool:
        """Whether the next token may be another than the greedy one."""
        return self._temperature is not None

    def choose(self, logits: Tensor, greedy: Tensor, readings: Readings) -> Tensor:
        """Next tokens, int64 [bucket], from logits [bucket, vocabulary] and their argmax [bucket]. The host
        time of the sampling operators goes to `readings.sampling`; it counts as dispatch.
        """
        if self._temperature is None:
            return greedy
        began = perf_counter_ns()
        tokens = self._draw(logits[: self._rows] / self._temperature)
        if self._rows < len(greedy):
            tokens = torch.cat((tokens, greedy[self._rows :]))  # rows of padding
        readings.sampling.append(perf_counter_ns() - began)
        return tokens

    def _draw(self, scores: Tensor) -> Tensor:
        """A token of each row of `scores`, float32 [rows, vocabulary], which are overwritten."""
        if self._top_k is not None and self._top_k < scores.shape[-1]:
            threshold = scores.topk(self._top_k, dim=-1).values[:, -1:]
            scores.masked_fill_(scores < threshold, -torch.inf)
        probabilities = scores.softmax(dim=-1)
        if self._top_p is None or self._top_p >= 1.0:
            return draw(probabilities, self._generator).squeeze(-1)
        likeliest, order = nucleus(probabilities, self._top_p)
        return order.gather(-1, draw(likeliest, self._generator)).squeeze(-1)


def draw(probabilities: Tensor, generator: torch.Generator | None) -> Tensor:
    """An index of each row, int64 [rows, 1], by its share of the row's sum. `probabilities`, [rows, n] and
    not negative, are overwritten. As `torch.multinomial` draws, which waits for the device to check them.

    Of exponential times with rates p the first to come is each by its share of all rates.
    """
    # A time of 0 would make 0 / 0 of a probability of 0. CUDA draws none, and a CPU one in 2 ** 53: a risk
    # that ATen takes, too. With others the likeliest index has a quotient above 0, and wins over any 0.
    exponential = torch.empty_like(probabilities).exponential_(1.0, generator=generator)
    return probabilities.div_(exponential).argmax(dim=-1, keepdim=True)


def nucleus(probabilities: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """The fewest likeliest tokens whose probabilities reach `top_p`; the others' become 0.

    From probabilities [rows, vocabulary]: what is left of them, likeliest first, and the tokens in that
    order, int64 [rows, vocabulary]. The likeliest always stays. Holtzman et al., 2020, arXiv:1904.09751.
    """
    ordered, order = probabilities.sort(dim=-1, descending=True)
    # The likeliest has exactly 0 before it, which is below any limit but 0.
    outside = ordered.cumsum(dim=-1).sub_(ordered) >= max(top_p, SMALLEST)
    return ordered.masked_fill_(outside, 0.0), order
