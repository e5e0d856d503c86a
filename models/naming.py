"""Names of modules: a user's `package.module:factory` or `file.py:factory`, and encoders. Without torch."""

from __future__ import annotations

import json
from pathlib import Path

ENCODERS = frozenset({
    "albert", "bert", "camembert", "distilbert", "electra", "mpnet", "roberta", "xlm-roberta",
    "beit", "convnext", "deit", "dinov2", "resnet", "swin", "vit",
    "clip", "clip_text_model", "clip_vision_model", "whisper",
})  # fmt: skip
"""Architectures of Hugging Face, by `model_type`, of which a call of the encoder is measured."""


def names_module(name: str) -> bool:
    """Whether `name` stands for a factory of the user's own, also where it lacks a part.

    A folder keeps its meaning, whatever its name; so do Hugging Face's names.
    """
    if name.startswith("hf:") or Path(name).is_dir():
        return False
    return ":" in name or name.endswith(".py")


def split_name(name: str) -> tuple[str, str]:
    """The module or file of `name`, and the factory in it: '' where none is named."""
    source, colon, factory = name.rpartition(":")
    return (source, factory) if colon else (name, "")


def is_encoder(name: str) -> bool:
    """Whether `name` is `hf:` and a folder with an encoder: of text, images, or the one of Whisper."""
    file = Path(name.removeprefix("hf:")).expanduser() / "config.json"
    if not name.startswith("hf:") or not file.is_file():
        return False
    try:
        config = json.loads(file.read_bytes())
    except ValueError:  # whoever loads it says so
        return False
    if not isinstance(config, dict) or config.get("model_type") not in ENCODERS:
        return False
    saved = config.get("architectures") or []
    return not config.get("is_decoder") and not any(
        str(one).endswith(("CausalLM", "LMHeadModel")) for one in saved
    )


def is_called(name: str) -> bool:
    """Whether the model called `name` is called on inputs, and does not complete prompts."""
    return names_module(name) or is_encoder(name)
