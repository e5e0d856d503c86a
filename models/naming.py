"""Names of modules: a user's `package.module:factory` or `file.py:factory`, and encoders. Without torch."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

PREFIX = "launchbound_user_"
"""Before the name of a user's package or file where that name is taken."""

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


class ModuleError(ValueError):
    """A user's module that cannot be loaded or called; the message is one line and names the remedy."""


@dataclass(frozen=True, slots=True)
class Source:
    """Code of the user's: `name` is imported from `root`, or as the one `file`, which is in no package. The
    user called it `said`, and its function `factory`.
    """

    root: Path
    name: str
    said: str
    factory: str
    file: Path | None = None

    def missing(self, why: str = "") -> ModuleError:
        return ModuleError(
            f"no module '{self.said}' in {self.root} or in {sys.prefix}{why}: correct the name, run this "
            "where it lies, or write path/to/file.py:factory"
        )


def find_source(name: str) -> Source:
    """What `name` names: a module from the current folder or the environment, or a file. Nothing of it runs.
    Raises ModuleError where there is none, as far as that can be known.

    A file in a package is imported as a part of it, so that its relative imports work.
    """
    text, factory = split_name(name)
    if not (text and factory):
        raise ModuleError(f"'{name}' names no factory: write package.module:factory or file.py:factory")
    if not text.endswith(".py") and os.sep not in text:
        if not all(part.isidentifier() for part in text.split(".")):
            raise ModuleError(f"'{text}' names no module: write package.module:factory or file.py:factory")
        source = Source(Path.cwd(), text, text, factory)
        top = text.partition(".")[0]  # to find what is in it would run it
        if not (top in sys.modules or PathFinder.find_spec(top, [str(source.root)]) or find_spec(top)):
            raise source.missing()
        return source
    file = Path(text).expanduser().absolute()
    if not file.is_file():
        near = file.with_suffix(".py")
        remedy = f"did you mean {near}?" if near.is_file() and near != file else "correct the path"
        raise ModuleError(f"no file {text} (current folder: {Path.cwd()}): {remedy}")
    root, parts = file.parent, [file.stem]
    while (root / "__init__.py").is_file():
        parts.insert(0, root.name)
        root = root.parent
    if len(parts) == 1:
        return Source(root, PREFIX + re.sub(r"\W", "_", file.stem), text, factory, file)
    return Source(root, ".".join(parts).removesuffix(".__init__"), text, factory)


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
