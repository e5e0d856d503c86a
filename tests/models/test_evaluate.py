"""The `tiny` that ships is as good as its card says, and the command that measures it can fail."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from models import checkpoint
from models.config import CONFIGS
from models.tokenizer import Tokenizer
from models.training import corpus, evaluate
from models.training.corpus import Corpus
from models.transformer import Transformer

pytestmark = pytest.mark.slow

TINY = checkpoint.TINY_FOLDER


@pytest.mark.parametrize(("prompt", "expected"), evaluate.OBVIOUS.items())
def test_tiny_closes_an_obvious_line(prompt: str, expected: str) -> None:
    added = evaluate.complete(checkpoint.build("tiny", 1), Tokenizer.load(TINY), prompt, 4)
    assert re.match(rf"{expected}\b", added)


def test_tiny_needs_far_fewer_bits_than_the_bigram_and_the_bigram_fewer_than_the_unigram() -> None:
    whole = corpus.read()
    text = Corpus(whole.training, tuple(file for file in whole.held_out if len(file) < 5_000))
    measured = evaluate.measure(checkpoint.build("tiny", 1), Tokenizer.load(TINY), text)
    # The card's 35 % is measured on all held-out files of the interpreter that it names.
    assert measured.saving > 0.25
    assert measured.transformer < measured.bigram < measured.unigram
    assert measured.bigram < measured.byte_bigram


def test_the_model_card_is_about_the_weights_that_ship() -> None:
    card = json.loads(re.findall(r"^\{.*\}$", (TINY / "MODEL_CARD.md").read_text(), re.MULTILINE)[-1])
    assert card["model_hash"] == checkpoint.content_hash("tiny")
    assert card["passed"] is True
    assert card["saving"] >= evaluate.TARGET


def command(folder: Path) -> subprocess.CompletedProcess[str]:
    """`python -m models.training.evaluate` on `folder`."""
    return subprocess.run(
        [sys.executable, "-m", "models.training.evaluate", "--folder", str(folder)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=False,
    )


def test_an_untrained_model_fails_with_exit_code_1_and_its_numbers(tmp_path: Path) -> None:
    config = CONFIGS["tiny"]
    small = type(config)(1, 16, 2, 1, 8, 32, vocabulary=config.vocabulary)
    checkpoint.save(Transformer(small, 1), tmp_path)
    Tokenizer.load(TINY).save(tmp_path)
    ended = command(tmp_path)
    assert ended.returncode == 1
    assert json.loads(ended.stdout.splitlines()[-1])["passed"] is False


def test_a_folder_that_cannot_be_read_ends_with_exit_code_2_and_the_remedy(tmp_path: Path) -> None:
    ended = command(tmp_path / "nothing")
    assert ended.returncode == 2
    assert "no folder" in ended.stdout
