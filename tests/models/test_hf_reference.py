"""The export in `transformers` computes the same; the reference that other runtimes are held to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from loadtests.peers.run import Reference
from loadtests.plan.cells import read_prompts
from models.checkpoint import TINY_FOLDER, Checkpoint
from models.config import Config
from models.hf.reference import export, make
from models.tokenizer import Tokenizer
from models.transformer import Transformer
from tests.support.small_models import greedy

transformers = pytest.importorskip("transformers")

PROMPTS = [
    "import o",
    "def __init__(",
    "class Stack:\n    def push(self, item):\n        self.items.append(item)\n\n    def pop(self):\n" * 4,
    "# A file that is longer than one chunk of prefill, read line by line\n" * 8,
]


def independent(model: Transformer, folder: Path) -> torch.nn.Module:
    """The exported `model`, loaded by `transformers` in float32."""
    export(model, folder)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.mark.slow
def test_a_ragged_batch_of_tiny_gives_the_logits_and_64_greedy_tokens_of_transformers(tmp_path: Path) -> None:
    ours = Checkpoint("tiny").build(len(PROMPTS))
    theirs = independent(ours, tmp_path)
    tokenizer = Tokenizer.load(TINY_FOLDER)
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
    assert min(map(len, prompts)) < 5
    assert max(map(len, prompts)) > 128

    tokens, logits = greedy(ours, prompts, new=64)

    for row, prompt in enumerate(prompts):
        alone = torch.tensor([prompt])
        with torch.no_grad():
            expected = theirs.generate(
                alone,
                max_new_tokens=64,
                min_new_tokens=64,
                do_sample=False,
                attention_mask=torch.ones_like(alone),
                pad_token_id=0,
            )
            reference = theirs(expected).logits[0, len(prompt) - 1 : -1]
        assert tokens[row].tolist() == expected[0, len(prompt) :].tolist()
        assert (logits[row] - reference).abs().max() <= 1e-4


def test_an_untied_head_and_other_shapes_are_exported_too(tmp_path: Path) -> None:
    config = Config(
        layers=2, width=24, heads=4, kv_heads=4, head_width=10, hidden=40, vocabulary=50, context=128,
        rope_theta=500.0, norm_epsilon=1e-3, tied=False,
    )  # fmt: skip
    ours = Transformer(config, 2, seed=3).eval()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.mul_(8.0)  # or attention is nearly uniform, and positions hardly matter
    theirs = independent(ours, tmp_path)
    tokens, logits = greedy(ours, [[1, 2, 3], [7] * 70], new=8)
    for row, prompt in enumerate(([1, 2, 3], [7] * 70)):
        whole = torch.tensor([prompt + tokens[row].tolist()])
        with torch.no_grad():
            reference = theirs(whole).logits[0, len(prompt) - 1 : -1]
        torch.testing.assert_close(logits[row], reference, atol=1e-4, rtol=1e-4)


# The reference

WANTED: dict[str, Any] = {"texts": read_prompts(), "count": 3, "prompt_tokens": 12, "new_tokens": 6}


def test_tokens_and_margins_are_those_of_steps_written_out_plainly(tmp_path: Path) -> None:
    reference = msgspec.convert(make("tiny", tmp_path, **WANTED), Reference)
    tokens, logits = greedy(
        Checkpoint("tiny").build(3), [row.prompt_tokens for row in reference.rows], new=6, chunk=16
    )
    for row, expected, seen in zip(reference.rows, tokens.tolist(), logits, strict=True):
        largest = seen.topk(2, dim=-1).values
        assert row.completion_tokens == expected
        assert row.margins == pytest.approx((largest[:, 0] - largest[:, 1]).tolist(), abs=1e-4)
