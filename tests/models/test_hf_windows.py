"""Windows and positions of Hugging Face models: what a model computes beyond them, and their check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from models.checkpoint import CheckpointError
from models.hf import loading
from tests.models.test_hf_models import opened
from tests.support.hf_folders import CONTEXT, VOCABULARY, WINDOW, transformers, write_model

pytestmark = pytest.mark.slow

SLIDING: dict[str, dict[str, Any]] = {
    "gemma2": {},
    "gemma3": {},
    "mistral": {},
    "qwen3": {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
}
"""Layers that slide next to some that do not, and (mistral) only such that do."""


@pytest.mark.parametrize("kind", SLIDING)
def test_beyond_a_sliding_window_each_token_is_the_models_own(tmp_path: Path, kind: str) -> None:
    folder = write_model(tmp_path / "model", kind, **SLIDING[kind])
    model, own = opened(folder), transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    assert model.config.context == CONTEXT > 2 * WINDOW
    text = torch.randint(VOCABULARY, (1, CONTEXT), generator=torch.Generator().manual_seed(3))
    cache, zero = model.new_cache(1, torch.float32), torch.zeros(1, dtype=torch.int64)
    with torch.no_grad():
        model(text[:, :20], zero, zero + 19, cache)
        stepped = [model(text[:, at : at + 1], zero + at, zero, cache)[0] for at in range(20, CONTEXT)]
        expected = own(input_ids=text).logits[0, 20:]
    torch.testing.assert_close(torch.cat(stepped), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", SLIDING)
def test_where_a_window_is_not_kept_the_context_ends_with_it(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_model(tmp_path / "model", kind, **SLIDING[kind])
    right = loading._mask
    monkeypatch.setattr(
        loading, "_mask", lambda places, columns, dtype, _: right(places, columns, dtype, None)
    )
    assert opened(folder).config.context == WINDOW
    assert f"beyond its window of {WINDOW} tokens differ" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match=f"set LAUNCHBOUND_CONTEXT to at most {WINDOW}"):
        opened(folder, context=64)
    assert opened(folder, context=WINDOW).config.context == WINDOW


ORIGINAL = 64
"""Tokens beyond which LongRoPE scales the positions of the whole sequence, those in the cache too."""


def longrope(folder: Path) -> Path:
    scaling = {
        "rope_type": "longrope",
        "short_factor": [1.0] * 6,
        "long_factor": [1 + 1.5 * n for n in range(6)],
    }
    return write_model(
        folder,
        "phi3",
        original_max_position_embeddings=ORIGINAL,
        rope_parameters={**scaling, "rope_theta": 1e4},
    )


def test_the_context_of_longrope_ends_where_its_positions_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = longrope(tmp_path / "model")
    assert opened(folder).config.context == ORIGINAL
    assert f"the original length of its rotary positions of {ORIGINAL} tokens" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match=f"set LAUNCHBOUND_CONTEXT to at most {ORIGINAL}"):
        opened(folder, context=2 * ORIGINAL)


@pytest.mark.parametrize("window", [64, 512])
def test_a_window_that_the_library_keeps_for_itself_bounds_the_context(tmp_path: Path, window: int) -> None:
    attention = {"attention_types": [[["global", "local"], 1]], "window_size": window}
    folder = write_model(tmp_path / "model", "gpt_neo", num_layers=2, num_heads=4, **attention)
    assert opened(folder).config.context == window
