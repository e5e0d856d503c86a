"""Loads an encoder of a Hugging Face folder as a module that is called on inputs by its configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from models.checkpoint import CONFIG_FILE, CheckpointError, refuse_not_finite
from models.hf.files import refuse_other_folder, weight_files
from models.hf.loading import in_one_line, silence_transformers
from models.workload import UserModule, library_module

LONGEST = 128
"""Tokens of a text, where the model takes as many: a usual length of what encoders are given."""

Inputs = Callable[[int, int], dict[str, Tensor]]


def load(folder: Path, name: str, device: torch.device, dtype: torch.dtype) -> UserModule:
    """The encoder in `folder`, with inputs of random tokens, pixels or sound features.

    Raises CheckpointError, with the remedy, where it cannot be read.
    """
    silence_transformers()
    refuse_other_folder(folder)
    weight_files(folder)
    try:
        config: Any = transformers.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        model, report = _class_of(config).from_pretrained(
            folder,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(
            f"the weights of {folder} do not fit its {CONFIG_FILE} ({in_one_line(error)}): fetch both again"
        ) from error
    # A pooler is left out of what is saved with another head; random, it costs the same.
    if missing := sorted(key for key in report["missing_keys"] if "pooler" not in key):
        raise CheckpointError(f"the weights of {folder} lack {', '.join(missing[:3])}: fetch them again")
    refuse_not_finite(folder, model.named_parameters())
    encoder = model.get_encoder() if model.config.is_encoder_decoder else model
    return library_module(name, encoder.eval(), _inputs(encoder.config, folder), device, dtype)


def _class_of(config: Any) -> Any:  # noqa: ANN401 - classes of the library
    """The text tower of CLIP, which with the one for images is one model; the model itself of all others."""
    return transformers.CLIPTextModel if config.model_type == "clip" else transformers.AutoModel


def _inputs(config: Any, folder: Path) -> Inputs:  # noqa: ANN401
    """Inputs as the preprocessing of such a model gives them, of the sizes in its configuration."""
    if hasattr(config, "num_mel_bins"):
        shape = (config.num_mel_bins, 2 * config.max_source_positions)
        return lambda batch, seed: {"input_features": torch.randn(batch, *shape)}
    if hasattr(config, "num_channels"):
        side = getattr(config, "image_size", 224)
        height, width = side if isinstance(side, list | tuple) else (side, side)
        return lambda batch, seed: {"pixel_values": torch.randn(batch, config.num_channels, height, width)}
    if not hasattr(config, "vocab_size"):
        raise CheckpointError(f"{folder}: no inputs for {config.model_type} are known: give a factory")
    length = min(LONGEST, config.max_position_embeddings)

    def of_text(batch: int, seed: int) -> dict[str, Tensor]:
        # Special tokens have the lowest numbers; one of padding would move what follows.
        tokens = torch.randint(config.vocab_size // 2, config.vocab_size, (batch, length))
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}

    return of_text
