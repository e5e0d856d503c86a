"""`python -m models.training.evaluate`: scores a model on the held-out files beside n-gram baselines."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from models import checkpoint
from models.tokenizer import Tokenizer, TokenizerError
from models.training.bits_per_byte import NgramCounts, all_logits, transformer_bits, with_start
from models.training.corpus import Corpus, CorpusError, read
from models.transformer import Transformer

OBVIOUS = {"import o": "s", "def __init__(": "self"}
"""Beginnings of a line, and their obvious continuations."""
TARGET = 0.35
"""How much fewer bits per byte than the bigram of the same tokens, at least."""
BEGINNINGS = (
    "def fib(",
    "class Stack:\n    def __init__(self",
    "for i in range(",
    "if __name__ == ",
    "    def __repr__(self):\n        return ",
    "try:\n    import ",
    '    """Return the ',
    "with open(",
)


@dataclass(frozen=True, slots=True)
class Scores:
    """Bits per byte of the held-out files; `saving` is how many fewer than the bigram of the same tokens."""

    transformer: float
    bigram: float
    unigram: float
    byte_bigram: float
    saving: float


def measure(model: Transformer, tokenizer: Tokenizer, text: Corpus) -> Scores:
    """Score the held-out files of `text`; the baselines count its training files."""
    training, held_out = (with_start(part, tokenizer) for part in (text.training, text.held_out))
    tokens = NgramCounts(training, tokenizer.vocabulary)
    size = text.held_out_bytes
    byte_pairs = NgramCounts([_bytes(file) for file in text.training], 256)
    bits = transformer_bits(model, held_out, model.config.context)
    bigram = tokens.bigram_bits(held_out)
    return Scores(
        transformer=bits / size,
        bigram=bigram / size,
        unigram=tokens.unigram_bits(held_out) / size,
        byte_bigram=byte_pairs.bigram_bits([_bytes(file) for file in text.held_out]) / size,
        saving=1 - bits / bigram,
    )


def _bytes(text: str) -> NDArray[np.int64]:
    return np.frombuffer(b"\0" + text.encode(), dtype=np.uint8).astype(np.int64)


@torch.inference_mode()
def complete(model: Transformer, tokenizer: Tokenizer, prompt: str, new: int) -> str:
    """The greedy completion of `prompt` in at most `new` tokens."""
    tokens = tokenizer.encode(prompt)
    start = len(tokens)
    while len(tokens) < start + new and (len(tokens) == start or tokens[-1] != tokenizer.end_of_text):
        logits = all_logits(model, torch.tensor([tokens]))
        tokens.append(int(logits[0, -1].argmax()))
    return tokenizer.decode(tokens[start:])


def main(
    folder: Annotated[Path, typer.Option(help="Folder of the model.")] = checkpoint.TINY_FOLDER,
    samples: Annotated[bool, typer.Option(help="Show completions of some beginnings.")] = False,
) -> None:
    """Print the scores and one JSON line; exit code 1 below the targets, 2 for a broken model."""
    console = Console()
    try:
        text = read()
        model = checkpoint.build(folder, 1)
        tokenizer = Tokenizer.load(folder, model.config.vocabulary)
    except (CorpusError, checkpoint.CheckpointError, TokenizerError) as error:
        console.print(str(error), style="red", markup=False)
        sys.exit(2)
    with console.status("scoring the held-out files"):
        measured = measure(model, tokenizer, text)
        added = {prompt: complete(model, tokenizer, prompt, 4) for prompt in OBVIOUS}
    closed = all(added[prompt].startswith(expected) for prompt, expected in OBVIOUS.items())
    _show(console, measured, added)
    for beginning in BEGINNINGS if samples else ():
        console.rule()
        whole = beginning + "»" + complete(model, tokenizer, beginning, 48)
        console.print(whole, markup=False, highlight=False)
    facts = {"model_hash": checkpoint.content_hash(folder), "held_out_bytes": text.held_out_bytes}
    passed = closed and measured.saving >= TARGET
    print(json.dumps({**asdict(measured), **facts, "closes_obvious_lines": closed, "passed": passed}))
    sys.exit(0 if passed else 1)


def _show(console: Console, measured: Scores, added: dict[str, str]) -> None:
    table = Table("held-out files", "bits per byte")
    table.add_row("this model", f"{measured.transformer:.3f}")
    table.add_row("bigram of the same tokens", f"{measured.bigram:.3f}")
    table.add_row("unigram of the same tokens", f"{measured.unigram:.3f}")
    table.add_row("bigram of bytes", f"{measured.byte_bigram:.3f}")
    console.print(table)
    console.print(f"{measured.saving:.1%} fewer bits than the bigram (target: at least {TARGET:.0%})")
    for prompt, text in added.items():
        console.print(f"{prompt!r} is completed by {text!r}", markup=False)


if __name__ == "__main__":
    typer.run(main)
