"""Models of another shape than the served one, with its layout and precision and drawn weights."""

from __future__ import annotations

import torch

from models.config import Config
from models.linears import lay_out, layout_of
from models.served import Served
from models.transformer import Transformer
from service.step.precision import Precision


def reshaped(
    model: Served, config: Config, rows: int, device: torch.device, precision: Precision
) -> Transformer:
    """A decoder of the shape `config` for batches of up to `rows` rows, in all else as `model` is served."""
    made = Transformer(config, rows).eval().to(device, precision.weights)
    made.rotary = made.rotary.to(precision.cache)
    return lay_out(made, layout_of(model))
