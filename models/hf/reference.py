"""Exports a model for other runtimes, with prompts and the greedy tokens that they have to repeat.

Run as a process, `python -m models.hf.reference MODEL FOLDER`: a `Wanted` comes in on standard input, and the
`Reference` goes out on standard output, both as JSON.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from models import checkpoint
from models.checkpoint import TINY_FOLDER, CheckpointError
from models.hf.export import export, llama_state
from models.tokenizer import END_OF_TEXT, TOKENIZER_FILE, Tokenizer
from models.transformer import Transformer


@dataclass(frozen=True, slots=True)
class Wanted:
    """`count` prompts of `prompt_tokens` tokens each, cut from `texts`, and `new_tokens` greedy ones."""

    texts: list[str]
    count: int
    prompt_tokens: int
    new_tokens: int


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt and its greedy completion; `margins` are each token's logit less that of the runner-up."""

    prompt: str
    prompt_tokens: list[int]
    completion: str
    completion_tokens: list[int]
    margins: list[float]


@dataclass(frozen=True, slots=True)
class Reference:
    """`weight_bytes`: those of the tensors in the folder, a tied head counted once."""

    model_hash: str
    parameters: int
    weight_bytes: int
    vocabulary: int
    end_of_text: int
    rows: list[Row]


def make(name: str, folder: Path, wanted: Wanted) -> Reference:
    """Write the model called `name` to `folder` in float32, with its tokenizer; returns the reference.

    The completions are those of launchbound's own forward in float32, one thread. Raises CheckpointError for
    a model that cannot be exported, and where `texts` hold too few prompts that long.
    """
    model = checkpoint.build(name, wanted.count)
    tokenizer = Tokenizer.load(checkpoint.folder_of(name) or TINY_FOLDER, model.config.vocabulary)
    prompts = _prompts(tokenizer, wanted)
    export(model, folder)
    shutil.copy((checkpoint.folder_of(name) or TINY_FOLDER) / TOKENIZER_FILE, folder / TOKENIZER_FILE)
    # Converters want all of them to exist; no prompt is encoded by them.
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token"), END_OF_TEXT)
    described = {"tokenizer_class": "PreTrainedTokenizerFast", **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(described, indent=2) + "\n")
    tokens, margins = greedy(model, torch.tensor(prompts), wanted.new_tokens)
    rows = [
        Row(tokenizer.decode(prompt), prompt, tokenizer.decode(new), new, margin)
        for prompt, new, margin in zip(prompts, tokens.tolist(), margins.tolist(), strict=True)
    ]
    state = llama_state(model)
    return Reference(
        model_hash=checkpoint.content_hash(name),
        parameters=sum(tensor.numel() for tensor in state.values()),
        weight_bytes=sum(tensor.nbytes for tensor in state.values()),
        vocabulary=model.config.vocabulary,
        end_of_text=tokenizer.end_of_text,
        rows=rows,
    )


def _prompts(tokenizer: Tokenizer, wanted: Wanted) -> list[list[int]]:
    """The beginnings of `texts` that have exactly the wanted length, as text and as tokens."""
    found = list[list[int]]()
    for text in wanted.texts:
        tokens = tokenizer.encode(text)[: wanted.prompt_tokens]
        # The cut may split what the tokenizer would join: then the text would be other tokens.
        if len(tokens) == wanted.prompt_tokens and tokenizer.encode(tokenizer.decode(tokens)) == tokens:
            found.append(tokens)
    if len(found) < wanted.count:
        raise CheckpointError(
            f"only {len(found)} of {len(wanted.texts)} texts begin with {wanted.prompt_tokens} tokens: "
            f"{wanted.count} are needed"
        )
    return found[: wanted.count]


@torch.inference_mode()
def greedy(model: Transformer, prompts: Tensor, new_tokens: int) -> tuple[Tensor, Tensor]:
    """Continue `prompts`, int64 [batch, tokens] of equal lengths, by `new_tokens`.

    Returns tokens int64 [batch, new_tokens], and the distance of their logits to the second largest ones,
    float32 of the same shape.
    """
    batch, length = prompts.shape
    cache = model.new_cache(batch, model.embedding.weight.dtype)
    zero = torch.zeros(batch, dtype=torch.int64)
    logits, token = model(prompts, zero, torch.full((batch,), length - 1), cache)
    tokens, margins = [token], [_margin(logits)]
    for count in range(new_tokens - 1):
        at = torch.full((batch,), length + count)
        logits, token = model(token.unsqueeze(1), at, zero, cache)
        tokens.append(token)
        margins.append(_margin(logits))
    return torch.stack(tokens, dim=1), torch.stack(margins, dim=1)


def _margin(logits: Tensor) -> Tensor:
    largest = logits.topk(2, dim=-1).values
    return largest[:, 0] - largest[:, 1]


def main() -> None:
    """The process; a model that cannot be exported ends it with code 2 and one line."""
    name, folder = sys.argv[1:]
    torch.set_num_threads(1)
    try:
        reference = make(name, Path(folder), Wanted(**json.load(sys.stdin)))
    except CheckpointError as error:
        print(f"launchbound: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    json.dump(asdict(reference), sys.stdout)


if __name__ == "__main__":
    main()
