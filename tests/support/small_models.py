"""Models that are built, run and compiled quickly, and what tests do with them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from models import checkpoint
from models.config import Config
from models.tokenizer import Tokenizer
from models.transformer import Transformer
from service.measure.cases import Bench
from service.records import EngineSettings

SMALL = Config(layers=6, width=16, heads=2, kv_heads=1, head_width=8, hidden=32, vocabulary=64, context=128)
"""A decoder that is built and run in milliseconds."""

CONFIG = Config(layers=2, width=32, heads=4, kv_heads=2, head_width=8, hidden=64, vocabulary=64, context=128)
BUCKETS = [1, 2]
PLAIN = ["eager", "no_grad", "inference_mode"]
LAYERS = 1
"""Of `tiny` in tests that compile it: the same in kind, and compiled in a third of the time."""


def write_few_layers(folder: Path) -> Path:
    """Write the first LAYERS layers of `tiny`, with its tokenizer, into `folder`, for `--model`."""
    config, state = checkpoint.load(checkpoint.TINY_FOLDER)
    model = Transformer(replace(config, layers=LAYERS), max_batch=1)
    kept = {name: state[name] for name in checkpoint.stored_tensors(model)}
    model.load_state_dict({**kept, "head.weight": kept["embedding.weight"]})
    checkpoint.save(model, folder)
    Tokenizer.load(checkpoint.TINY_FOLDER, config.vocabulary).save(folder)
    return folder


@torch.no_grad()
def greedy(model: Transformer, prompts: list[list[int]], new: int, chunk: int = 64) -> tuple[Tensor, Tensor]:
    """Continue right-padded `prompts` by `new` tokens.

    Returns tokens int64 [batch, new] and the logits [batch, new, vocabulary] that chose them.
    """
    batch, lengths = len(prompts), torch.tensor([len(prompt) for prompt in prompts])
    cache = model.new_cache(batch, model.embedding.weight.dtype)
    padded = torch.zeros(batch, -(-int(lengths.max()) // chunk) * chunk, dtype=torch.int64)
    for row, prompt in zip(padded, prompts, strict=True):
        row[: len(prompt)] = torch.tensor(prompt)
    logits = torch.zeros(batch, model.config.vocabulary)
    for begin in range(0, padded.shape[1], chunk):
        last = (lengths - 1 - begin).clamp(0, chunk - 1)
        positions = torch.full((batch,), begin)
        step, _ = model(padded[:, begin : begin + chunk], positions, last, cache)
        logits = torch.where((lengths > begin).unsqueeze(1), step, logits)
    seen = [logits]
    for count in range(new - 1):
        tokens = seen[-1].argmax(dim=-1, keepdim=True)
        step, _ = model(tokens, lengths + count, torch.zeros_like(lengths), cache)
        seen.append(step)
    every = torch.stack(seen, dim=1)
    return every.argmax(dim=-1), every


@contextmanager
def small_bench(cache_folder: Path) -> Iterator[Bench]:
    """One bench for the whole session; the thread count is what it was afterwards."""
    threads = torch.get_num_threads()
    bench = _bench(cache_folder)
    torch.set_num_threads(1)
    try:
        yield bench
    finally:
        torch.set_num_threads(threads)


@cache
def _bench(cache_folder: Path) -> Bench:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(Transformer(CONFIG, max_batch=max(BUCKETS), seed=5), folder)
        settings = EngineSettings(
            address="", model=folder, device="cpu", modes=[*PLAIN, "compiled"], batch_sizes=BUCKETS,
            threads=1, cache_folder=str(cache_folder),
        )  # fmt: skip
        return Bench(settings)


def quiet(*words: object) -> None:
    """Says nothing."""
    del words
