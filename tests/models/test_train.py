"""Training: its forward is the served one, the loss falls, and what it writes can be served."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from models import checkpoint
from models.config import Config
from models.tokenizer import Tokenizer
from models.training import train
from models.training.train import Corpus
from models.transformer import Transformer
from tests.support.small_models import greedy

TOKENIZER = Tokenizer.load(checkpoint.TINY_FOLDER)
SMALL = Config(layers=2, width=16, heads=2, kv_heads=1, head_width=8, hidden=32, vocabulary=4096)
TEXT = Corpus(
    training=tuple(f"def f{n}(value):\n    return value + {n}\n" * 20 for n in range(8)),
    held_out=("def g(value):\n    return value - 1\n" * 10,),
)
PLAN = train.TrainingPlan(steps=40, minutes=60, batch=4, length=32, evaluate_every=20, compile=False)


def test_the_training_forward_gives_the_logits_of_the_served_steps() -> None:
    model = checkpoint.build("tiny", 2)
    prompts = [
        TOKENIZER.encode("import os\n\n\ndef walk(top):\n"),
        TOKENIZER.encode("class Node(object):\n    "),
    ]
    tokens, served = greedy(model, prompts, new=24)
    for row, prompt in enumerate(prompts):
        whole = torch.tensor([prompt + tokens[row].tolist()])
        with torch.no_grad():
            trained = train.all_logits(model, whole)[0, len(prompt) - 1 : -1]
        torch.testing.assert_close(trained, served[row], atol=1e-4, rtol=1e-4)


def test_training_lowers_the_loss_on_held_out_text_and_its_folder_can_be_served(tmp_path: Path) -> None:
    progress = train.train(PLAN, SMALL, TEXT, TOKENIZER, tmp_path)
    seen = [measured for *_, measured in progress if measured is not None]
    uniform = len(TOKENIZER.encode(TEXT.held_out[0])) * 12 / TEXT.held_out_bytes
    assert len(seen) == 2
    assert seen[-1] < seen[0] < uniform
    assert checkpoint.build(tmp_path, 1).config == SMALL
    assert Tokenizer.load(tmp_path, SMALL.vocabulary).encode("def f0") == TOKENIZER.encode("def f0")


def test_held_out_files_are_split_by_path_whatever_they_contain(tmp_path: Path) -> None:
    names = [f"module{number}.py" for number in range(200)]
    for name in names:
        (tmp_path / name).write_text(f"# {name}\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text("# skipped\n")
    (tmp_path / "copy_of_module1.py").write_text("# module1.py\n")
    (tmp_path / "latin.py").write_bytes(b"# \xe9\n")
    text = train.read(tmp_path)
    assert set(text.held_out) == {f"# {name}\n" for name in names if train.is_held_out(name)}
    assert len(text.training) + len(text.held_out) == 200
    assert 1 < len(text.held_out) < 30


def test_bits_of_the_transformer_count_every_token_once_whatever_the_window() -> None:
    model = Transformer(SMALL, 1).eval()
    files = train.with_start(TEXT.held_out, TOKENIZER)
    tokens = torch.from_numpy(files[0]).unsqueeze(0)
    with torch.no_grad():
        bits = train.loss_of(model, tokens).item() * (len(files[0]) - 1) / math.log(2)
    assert train.bits(model, files, length=512) == pytest.approx(bits, rel=3e-3)
    alone = len(files[0]) - 1  # windows of one token see only the one before
    assert train.bits(model, files, length=1) == pytest.approx(12 * alone, rel=0.05)
