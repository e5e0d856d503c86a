"""Which positions each kind of layer attends to: all before a token, or those in a window behind it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig

FULL, SLIDING = "full_attention", "sliding_attention"
"""Names in a configuration's `layer_types`."""


class Masks:
    """The masks of a step for a model of `config`, as its forward takes them."""

    def __init__(self, config: PreTrainedConfig) -> None:
        self.window = window_of(config)
        kinds = set(getattr(config, "layer_types", None) or ())
        # Where layers differ, the library takes a mask for each kind by name, else one for all of them.
        self._kinds = sorted(kinds & {FULL, SLIDING}) if SLIDING in kinds else []

    def of(self, places: Tensor, columns: Tensor, dtype: torch.dtype) -> Any:  # noqa: ANN401 - as the library wants it
        """What is added to the scores of positions `columns`, for each token at `places` [batch, tokens].

        [batch, 1, tokens, positions], 0 where it attends; by kind of layer where they differ. Four
        dimensions, so that the library uses it unchanged; additive, because torch turns a boolean mask into
        this in every layer.
        """
        if not self._kinds:
            return _mask(places, columns, dtype, self.window)
        return {
            kind: _mask(places, columns, dtype, self.window if kind == SLIDING else None)
            for kind in self._kinds
        }


def window_of(config: PreTrainedConfig) -> int | None:
    """Tokens that a sliding layer attends to, itself included; None where no layer of the model slides."""
    window: int | None = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    return window if window and (kinds is None or SLIDING in kinds) else None


def _mask(places: Tensor, columns: Tensor, dtype: torch.dtype, window: int | None) -> Tensor:
    at = places.unsqueeze(2)
    unseen = columns > at
    if window is not None:
        unseen = unseen | (columns <= at - window)
    return unseen.unsqueeze(1).to(dtype) * torch.finfo(dtype).min
