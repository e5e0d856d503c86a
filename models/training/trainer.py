"""Trains `tiny` by a seed and a learning rate schedule, and scores it on the held-out files."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor
from torch.nn import functional as F

from models import checkpoint
from models.config import CONFIGS, Config
from models.tokenizer import Tokenizer
from models.training.corpus import Corpus, CorpusError, batches, read
from models.transformer import Attention, Block, Transformer, rotate

_NATS_PER_BIT = math.log(2)


# The forward over whole sequences: no cache, logits at every position


def _attend(attention: Attention, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    c = attention.config
    batch, tokens, _ = x.shape
    projected = attention.query_key_value(x).view(batch, tokens, c.heads + 2 * c.kv_heads, c.head_width)
    rotated, values = projected.split([c.heads + c.kv_heads, c.kv_heads], dim=2)
    rotated = rotate(rotated, *rotation).to(x.dtype).transpose(1, 2)
    queries, keys = rotated.split([c.heads, c.kv_heads], dim=1)
    mixed = F.scaled_dot_product_attention(
        queries, keys, values.transpose(1, 2).to(x.dtype), is_causal=True, enable_gqa=True
    )
    out: Tensor = attention.output(mixed.transpose(1, 2).reshape(batch, tokens, -1))
    return out


def all_logits(model: Transformer, tokens: Tensor) -> Tensor:
    """Logits [batch, tokens, vocabulary] after each of `tokens`, int64 [batch, tokens] from position 0 on.

    Uses the modules of `model` and equals what its steps return, one position after the other.
    """
    table = model.rotary[: tokens.shape[1]]
    rotation = table[:, 0].unsqueeze(1), table[:, 1].unsqueeze(1)
    x = model.embedding(tokens)
    for module in model.blocks:
        block = cast(Block, module)
        x = x + _attend(block.attention, block.attention_norm(x), rotation)
        x = x + block.feed_forward(block.feed_forward_norm(x))
    out: Tensor = model.head(model.norm(x))
    return out


def loss_of(model: Transformer, tokens: Tensor) -> Tensor:
    """Mean cross-entropy, nats per token, of predicting `tokens` [batch, tokens + 1] from those before."""
    logits = all_logits(model, tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def with_start(texts: Sequence[str], tokenizer: Tokenizer) -> list[NDArray[np.int64]]:
    """Tokens of each of `texts` after one end-of-text token, from which the first is predicted."""
    encoded = tokenizer.encode_batch(texts)
    return [np.array([tokenizer.end_of_text, *ids], dtype=np.int64) for ids in encoded]


@torch.inference_mode()
def bits(model: Transformer, files: Sequence[NDArray[np.int64]], length: int) -> float:
    """Bits that `model` needs, multiplying in bfloat16, for all tokens of `files` but the first of each.

    Every token is counted once, in independent windows of `length`: an upper bound.
    """
    device = model.embedding.weight.device
    windows = [
        file[start : start + length + 1] for file in files for start in range(0, len(file) - 1, length)
    ]
    windows.sort(key=len)
    nats = 0.0
    for start in range(0, len(windows), 16):
        group = windows[start : start + 16]
        padded = np.full((len(group), len(group[-1])), -1, dtype=np.int64)
        for row, window in zip(padded, group, strict=True):
            row[: len(window)] = window
        tokens = torch.from_numpy(padded).to(device)
        with torch.autocast(device.type, torch.bfloat16):
            logits = all_logits(model, tokens[:, :-1].clamp(min=0))
        targets = tokens[:, 1:].flatten()
        nats += F.cross_entropy(
            logits.flatten(0, 1).float(), targets, ignore_index=-1, reduction="sum"
        ).item()
    return nats / _NATS_PER_BIT


# Training


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """Hyperparameters and limits of a training, which ends at the first of `steps` and `minutes`.

    `minutes` end with the last step; the last evaluation comes after them.
    """

    steps: int = 9000
    minutes: float = 80.0
    batch: int = 8
    length: int = 512
    rate: float = 3e-3
    warmup: float = 0.02
    weight_decay: float = 0.1
    evaluate_every: int = 300
    seed: int = 0
    compile: bool = True


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """State after a step. `loss` is in nats per token, `bits_per_byte` that of the held-out files."""

    step: int
    fraction: float
    loss: float
    bits_per_byte: float | None


def rate_at(plan: TrainingPlan, fraction: float) -> float:
    """Learning rate after `fraction` of the budget: a linear warm-up, then a cosine down to zero."""
    if fraction < plan.warmup:
        return plan.rate * (fraction + plan.warmup / 20) / (plan.warmup * 1.05)
    return plan.rate * 0.5 * (1 + math.cos(math.pi * (fraction - plan.warmup) / (1 - plan.warmup)))


class Trainer:
    """A model and its optimiser."""

    def __init__(self, plan: TrainingPlan, config: Config) -> None:
        self.plan = plan
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = Transformer(config, 1, seed=plan.seed).to(self.device).train()
        decayed = [p for p in self.model.parameters() if p.dim() > 1]
        plain = [p for p in self.model.parameters() if p.dim() < 2]
        groups: list[dict[str, Any]] = [{"params": decayed}, {"params": plain, "weight_decay": 0.0}]
        self._optimiser = torch.optim.AdamW(
            groups, lr=plan.rate, betas=(0.9, 0.95), weight_decay=plan.weight_decay, fused=True
        )
        self._loss = torch.compile(loss_of, dynamic=False) if plan.compile else loss_of

    def run(self, corpus: Corpus, tokenizer: Tokenizer, folder: Path) -> Iterator[TrainingProgress]:
        """Train until the plan's first limit; the model is written to `folder` at every evaluation."""
        plan = self.plan
        held_out = with_start(corpus.held_out, tokenizer)
        source = batches(corpus.training, tokenizer, plan.batch, plan.length, plan.seed)
        began = time.monotonic()
        step, fraction = 0, 0.0
        while fraction < 1:
            loss = self._update(next(source), rate_at(plan, fraction))
            step += 1
            fraction = min(1.0, max(step / plan.steps, (time.monotonic() - began) / 60 / plan.minutes))
            measured = None
            if step % plan.evaluate_every == 0 or fraction >= 1:
                measured = bits(self.model, held_out, plan.length) / corpus.held_out_bytes
                checkpoint.save(self.model, folder)
                tokenizer.save(folder)
            yield TrainingProgress(step, fraction, loss, measured)

    def _update(self, tokens: Tensor, rate: float) -> float:
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        with torch.autocast(self.device.type, torch.bfloat16):
            loss = self._loss(self.model, tokens.to(self.device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        return loss.item()


def train(plan: TrainingPlan, folder: Path, threads: int) -> None:
    """Train `tiny` into `folder`; exits with code 2 where there is no text to train on."""
    torch.set_num_threads(threads)
    console = Console()
    config = CONFIGS["tiny"]
    try:
        text = read()
    except CorpusError as error:
        console.print(str(error), style="red", markup=False)
        sys.exit(2)
    tokenizer = Tokenizer.train(text.training, config.vocabulary)
    console.print(
        f"{len(text.training)} files to learn from, {len(text.held_out)} held out "
        f"({text.held_out_bytes} bytes); {threads} threads; "
        f"{plan.steps} steps, at most {plan.minutes:g} minutes"
    )
    with console.status("compiling") as status:
        for now in Trainer(plan, config).run(text, tokenizer, folder):
            status.update(f"step {now.step} ({now.fraction:.1%}), loss {now.loss:.3f}")
            if now.bits_per_byte is not None:
                console.print(f"step {now.step}: {now.bits_per_byte:.4f} bits per held-out byte, in {folder}")
