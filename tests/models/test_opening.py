"""A model of ours by its name: its context and its dtypes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from models import checkpoint
from models.checkpoint import TINY_FOLDER, CheckpointError
from models.config import CONFIGS
from models.opening import architecture_hash, content_hash, open_model, open_tokenizer
from models.served import Served
from models.transformer import Transformer
from service.front.settings import Settings
from tests.support.small_models import greedy

CPU = torch.device("cpu")


def opened(name: str, context: int | None = None, cache: torch.dtype = torch.float32) -> Served:
    return open_model(name, 2, CPU, torch.float32, cache, context, 64)


def test_a_shorter_context_changes_no_token() -> None:
    whole = opened("tiny")
    short = opened("tiny", context=128)
    assert (whole.config.context, short.config.context) == (512, 128)
    assert isinstance(whole, Transformer)
    assert isinstance(short, Transformer)
    prompts = [[5, 6, 7], list(range(100, 190))]
    assert torch.equal(greedy(whole, prompts, 8)[0], greedy(short, prompts, 8)[0])


@pytest.mark.parametrize("name", ["small", "folder"])
def test_seeded_sizes_and_folders_can_be_shortened_too(tmp_path: Path, name: str) -> None:
    if name == "folder":
        checkpoint.save(Transformer(CONFIGS["tiny"], 1, seed=5), tmp_path)
        name = str(tmp_path)
    assert opened(name, context=64).config.context == 64


def test_the_seeded_sizes_use_the_tokenizer_of_tiny() -> None:
    vocabulary = CONFIGS["small"].vocabulary
    assert open_tokenizer("small", vocabulary).encode("import") == open_tokenizer("tiny", vocabulary).encode(
        "import"
    )


def test_every_model_has_its_hash() -> None:
    assert len({content_hash(name) for name in ("tiny", "small", "base")}) == 3


def test_a_hugging_face_name_is_refused_where_only_our_models_work() -> None:
    with pytest.raises(CheckpointError, match=r"not a launchbound model.*tiny, small, base"):
        checkpoint.build("hf:somewhere", 1)


def test_the_context_reaches_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHBOUND_CONTEXT", "256")
    assert Settings().engine_settings("").context == 256


def test_models_of_one_configuration_compile_to_the_same_code_wherever_they_lie(tmp_path: Path) -> None:
    copied = shutil.copytree(TINY_FOLDER, tmp_path / "copied")
    assert architecture_hash(str(copied)) == architecture_hash("tiny")
    shallow = json.loads((copied / "config.json").read_text()) | {"layers": 1}
    (copied / "config.json").write_text(json.dumps(shallow))
    names = ["tiny", "small", "base", str(copied), str(tmp_path / "none"), "hf:/no/such/folder"]
    assert len({architecture_hash(name) for name in names}) == len(names)
