"""Sliding windows of Hugging Face's models: what a model computes beyond them, and that it is checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from models.checkpoint import CheckpointError
from models.hf import check, masks
from models.hf.adapter import HuggingFaceModel
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


def test_a_window_longer_than_a_piece_is_checked_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model(tmp_path / "model", "gemma2")
    steps = list[int]()
    right = HuggingFaceModel.forward

    def noted(self: HuggingFaceModel, tokens: torch.Tensor, *rest: Any) -> Any:
        steps.append(tokens.shape[1])
        return right(self, tokens, *rest)

    monkeypatch.setattr(check, "PIECE", 4)
    monkeypatch.setattr(HuggingFaceModel, "forward", noted)
    opened(folder)
    assert max(steps) == 4
    assert sum(steps) == 7 + 2 + (WINDOW + check.BEYOND - 2) + 2


@pytest.mark.parametrize("kind", SLIDING)
def test_a_window_that_is_not_kept_is_found_at_load(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model(tmp_path / "model", kind, **SLIDING[kind])
    right = masks._mask
    monkeypatch.setattr(masks, "_mask", lambda places, columns, dtype, _: right(places, columns, dtype, None))
    with pytest.raises(CheckpointError, match=f"beyond its window of {WINDOW} tokens .* differ"):
        opened(folder)
    assert opened(folder, context=WINDOW).config.context == WINDOW
