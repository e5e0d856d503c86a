"""The `tiny` that ships is as good as its card says, and the command that measures it can fail."""

from __future__ import annotations

import json
import re
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


@pytest.fixture
def little_text(monkeypatch: pytest.MonkeyPatch) -> None:
    text = Corpus(training=("def f(value):\n    return value\n" * 20,), held_out=("import os\n" * 10,))
    monkeypatch.setattr(evaluate, "read", lambda: text)


def ended(folder: Path) -> int:
    with pytest.raises(SystemExit) as end:
        evaluate.main(folder)
    assert isinstance(end.value.code, int)
    return end.value.code


@pytest.mark.usefixtures("little_text")
def test_an_untrained_model_fails_with_exit_code_1_and_its_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = CONFIGS["tiny"]
    small = type(config)(1, 16, 2, 1, 8, 32, vocabulary=config.vocabulary)
    checkpoint.save(Transformer(small, 1), tmp_path)
    Tokenizer.load(TINY).save(tmp_path)
    assert ended(tmp_path) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["passed"] is False


@pytest.mark.usefixtures("little_text")
def test_a_folder_that_cannot_be_read_ends_with_exit_code_2_and_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(tmp_path / "nothing") == 2
    assert "no folder" in capsys.readouterr().out
