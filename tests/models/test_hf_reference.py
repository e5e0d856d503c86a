"""The reference that other runtimes are held to: prompts of one length, and our own greedy tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtests.plan.prompts import read_prompts
from models import checkpoint
from models.checkpoint import TINY_FOLDER, CheckpointError
from models.hf.reference import Wanted, make
from models.tokenizer import Tokenizer
from tests.support.small_models import greedy

WANTED = Wanted(texts=read_prompts(), count=3, prompt_tokens=12, new_tokens=6)


def test_tokens_and_margins_are_those_of_steps_written_out_plainly(tmp_path: Path) -> None:
    reference = make("tiny", tmp_path, WANTED)
    tokens, logits = greedy(
        checkpoint.build("tiny", 3), [row.prompt_tokens for row in reference.rows], new=6, chunk=16
    )
    for row, expected, seen in zip(reference.rows, tokens.tolist(), logits, strict=True):
        largest = seen.topk(2, dim=-1).values
        assert row.completion_tokens == expected
        assert row.margins == pytest.approx((largest[:, 0] - largest[:, 1]).tolist(), abs=1e-4)


def test_prompts_are_other_texts_of_one_length_that_encode_to_their_tokens(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(TINY_FOLDER)
    rows = make("tiny", tmp_path, WANTED).rows
    assert len({row.prompt for row in rows}) == 3
    for row in rows:
        assert len(row.prompt_tokens) == 12
        assert tokenizer.encode(row.prompt) == row.prompt_tokens
        assert tokenizer.decode(row.completion_tokens) == row.completion


def test_the_folder_holds_float32_weights_and_a_tokenizer(tmp_path: Path) -> None:
    reference = make("tiny", tmp_path, WANTED)
    assert reference.weight_bytes == 4 * reference.parameters
    assert (tmp_path / "model.safetensors").stat().st_size > reference.weight_bytes
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "float32"
    assert (tmp_path / "tokenizer.json").is_file()


def test_too_few_texts_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="2 are needed"):
        make("tiny", tmp_path, Wanted(texts=["x = 1", "y"], count=2, prompt_tokens=12, new_tokens=1))
