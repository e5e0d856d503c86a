"""`python -m models.training.train`: train `tiny` on the standard library's source, from scratch.

The text is the Python standard library in two sets of files, one to learn from and one that is held out, on
which the model is scored.
"""

from __future__ import annotations

import hashlib
import math
import os
import sysconfig
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated, Any, cast

if __name__ == "__main__":
    # Read once, when torch's OpenMP is loaded: threads that spin while they wait made a step ten times longer
    # on a busy machine; letting them sleep costs nothing on an idle one.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor
from torch.nn import functional as F

from models import checkpoint
from models.config import CONFIGS, Config
from models.tokenizer import Tokenizer
from models.transformer import Attention, Block, Transformer, rotate

# The text


_SKIPPED = {
    "site-packages", "dist-packages", "test", "tests", "idlelib", "idle_test", "lib-dynload", "__pycache__",
    "encodings", "pydoc_data", "turtledemo",
}  # fmt: skip
"""Third-party code, what some installations leave out, and tables that are data rather than code."""
_HELD_OUT_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Corpus:
    """Texts of whole files in the order of their paths: a training and a held-out set."""

    training: tuple[str, ...]
    held_out: tuple[str, ...]

    @property
    def held_out_bytes(self) -> int:
        return sum(len(text.encode()) for text in self.held_out)


def is_held_out(path: str) -> bool:
    """Whether the file at `path` (relative, with slashes) is kept out of training: by a hash of its path."""
    number = int.from_bytes(hashlib.sha256(path.encode()).digest()[:8], "big")
    return number / 2**64 < _HELD_OUT_SHARE


def read(root: Path | None = None) -> Corpus:
    """The standard library below `root` (default: this interpreter's), in the order of its paths.

    Raises BadParameter where no source is installed.
    """
    root = Path(sysconfig.get_path("stdlib")) if root is None else root
    training: list[str] = []
    held_out: list[str] = []
    for path, text in _files(root):
        (held_out if is_held_out(path) else training).append(text)
    if not training or not held_out:
        raise typer.BadParameter(
            f"no Python source below {root}: install the interpreter's standard library as source"
        )
    return Corpus(tuple(training), tuple(held_out))


def _files(root: Path) -> Iterator[tuple[str, str]]:
    seen: set[bytes] = set()
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root)
        if _SKIPPED.intersection(path.parts) or path.parts[0].startswith("config-"):
            continue
        content = file.read_bytes()
        digest = hashlib.sha256(content).digest()
        if digest in seen or not content.strip():
            continue
        seen.add(digest)
        try:
            yield path.as_posix(), content.decode()
        except UnicodeDecodeError:
            continue  # a few files declare another encoding


_PIECE_CHARACTERS = 48
"""Mean length of the pieces that are encoded on their own, in characters."""
_SHARE_OF_LINES = 0.25


def pieces(text: str, random: np.random.Generator) -> list[str]:
    """`text` cut at random places into pieces of about 48 characters.

    A prompt ends anywhere, often inside what would be one token ("import o" of " os"). Encoded in pieces, the
    text has such ends, and the model learns to continue from them.
    """
    cuts = np.sort(random.integers(0, len(text) + 1, size=len(text) // _PIECE_CHARACTERS)).tolist()
    ends = zip([0, *cuts], [*cuts, len(text)], strict=True)
    return [text[start:end] for start, end in ends if start < end]


def epoch_windows(
    texts: Sequence[str], tokenizer: Tokenizer, length: int, seed: tuple[int, int]
) -> NDArray[np.int64]:
    """About all of `texts` once, shuffled, as windows [windows, length + 1].

    Each text starts after an end-of-text token. A quarter of the windows begin with an unindented line,
    as prompts do; the others lie a window apart. `seed` is (run, epoch): the same gives the same windows.
    """
    random = np.random.default_rng(seed)
    cut = [pieces(texts[index], random) for index in random.permutation(len(texts))]
    encoded = tokenizer.encode_batch([piece for text in cut for piece in ["", *text]])
    tokens = np.fromiter(
        (token for ids in encoded for token in (ids or (tokenizer.end_of_text,))), dtype=np.int64
    )
    starts = np.arange(random.integers(0, length), len(tokens) - length, length)
    lines = _line_starts(tokens[: max(0, len(tokens) - length)], tokenizer)
    if len(lines):
        chosen = random.random(len(starts)) < _SHARE_OF_LINES
        starts[chosen] = random.choice(lines, size=int(chosen.sum()))
    random.shuffle(starts)
    windows: NDArray[np.int64] = tokens[starts[:, None] + np.arange(length + 1)]
    return windows


def _line_starts(tokens: NDArray[np.int64], tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Indices in `tokens` at which an unindented line begins."""
    token_bytes = [tokenizer.bytes_of(token) for token in range(tokenizer.vocabulary)]
    closing = np.array([token.endswith(b"\n") for token in token_bytes])
    closing[tokenizer.end_of_text] = True
    opening = np.array([token[:1].strip() != b"" for token in token_bytes])
    return np.flatnonzero(closing[tokens[:-1]] & opening[tokens[1:]]) + 1


def batches(
    texts: Sequence[str], tokenizer: Tokenizer, batch: int, length: int, seed: int
) -> Iterator[Tensor]:
    """Batches int64 [batch, length + 1] without end, epoch after epoch.

    Raises ValueError where the texts do not fill one batch.
    """
    for epoch in count():
        windows = epoch_windows(texts, tokenizer, length, (seed, epoch))
        usable = len(windows) // batch
        if not usable:
            raise ValueError(
                f"the text fills {len(windows)} windows of {length}, not one batch of {batch}: give more"
            )
        yield from torch.from_numpy(windows[: usable * batch]).split(batch)


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
    return nats / math.log(2)


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


def rate_at(plan: TrainingPlan, fraction: float) -> float:
    """Learning rate after `fraction` of the budget: a linear warm-up, then a cosine down to zero."""
    if fraction < plan.warmup:
        return plan.rate * (fraction + plan.warmup / 20) / (plan.warmup * 1.05)
    return plan.rate * 0.5 * (1 + math.cos(math.pi * (fraction - plan.warmup) / (1 - plan.warmup)))


def train(
    plan: TrainingPlan, config: Config, corpus: Corpus, tokenizer: Tokenizer, folder: Path
) -> Iterator[tuple[int, float, float, float | None]]:
    """Train until the plan's first limit; the model is written to `folder` at every evaluation.

    Yields after each step its number, the share of the budget that is spent, the loss in nats per token, and
    where it is evaluated the bits per byte of the held-out files.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Transformer(config, 1, seed=plan.seed).to(device).train()
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() < 2]
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": plain, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(
        groups, lr=plan.rate, betas=(0.9, 0.95), weight_decay=plan.weight_decay, fused=True
    )
    compiled = torch.compile(loss_of, dynamic=False) if plan.compile else loss_of
    held_out = with_start(corpus.held_out, tokenizer)
    began, fraction = time.monotonic(), 0.0
    source = batches(corpus.training, tokenizer, plan.batch, plan.length, plan.seed)
    for step, tokens in enumerate(source, 1):
        for group in optimiser.param_groups:
            group["lr"] = rate_at(plan, fraction)
        with torch.autocast(device.type, torch.bfloat16):
            loss = compiled(model, tokens.to(device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        nats = loss.item()  # waits for a GPU
        fraction = min(1.0, max(step / plan.steps, (time.monotonic() - began) / 60 / plan.minutes))
        measured = None
        if step % plan.evaluate_every == 0 or fraction >= 1:
            measured = bits(model, held_out, plan.length) / corpus.held_out_bytes
            checkpoint.save(model, folder)
            tokenizer.save(folder)
        yield step, fraction, nats, measured
        if fraction >= 1:
            return


def main(
    out: Annotated[Path, typer.Option(help="Folder for the weights and the tokenizer.")] = Path(
        "results/tiny-training"
    ),
    minutes: Annotated[
        float, typer.Option(min=0.01, help="Limit of all steps and the evaluations between them.")
    ] = 80.0,
    steps: Annotated[
        int, typer.Option(min=1, help="Limit in steps of 4096 tokens, if reached earlier.")
    ] = 9000,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch on a CPU.")] = os.cpu_count() or 1,
    seed: Annotated[int, typer.Option(help="Seed of the weights and of the order of the text.")] = 0,
    compile: Annotated[bool, typer.Option(help="Use torch.compile (needs a C++ compiler).")] = True,
) -> None:
    """Train `tiny`, evaluate held-out files, and write it to --out at every evaluation."""
    plan = TrainingPlan(steps=steps, minutes=minutes, seed=seed, compile=compile)
    torch.set_num_threads(threads)
    console = Console()
    config = CONFIGS["tiny"]
    text = read()
    tokenizer = Tokenizer.train(text.training, config.vocabulary)
    console.print(
        f"{len(text.training)} files to learn from, {len(text.held_out)} held out "
        f"({text.held_out_bytes} bytes); {threads} threads; "
        f"{plan.steps} steps, at most {plan.minutes:g} minutes"
    )
    with console.status("compiling") as status:
        for step, fraction, loss, measured in train(plan, config, text, tokenizer, out):
            status.update(f"step {step} ({fraction:.1%}), loss {loss:.3f}")
            if measured is not None:
                console.print(f"step {step}: {measured:.4f} bits per held-out byte, in {out}")


if __name__ == "__main__":
    typer.run(main)
