"""A model by its name: a named size, a folder that `save` wrote, or `hf:` and a folder or a hub id."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from functools import cache
from importlib import import_module
from types import ModuleType

import msgspec
import torch

from models import checkpoint
from models.checkpoint import CONFIG_FILE, TINY_FOLDER, CheckpointError
from models.hf import files
from models.served import Served, ServedTokenizer
from models.tokenizer import Tokenizer


def open_model(
    name: str,
    rows: int,
    device: torch.device,
    weights: torch.dtype,
    cache: torch.dtype,
    context: int | None = None,
    chunk: int = 1,
) -> Served:
    """The model called `name`, ready to serve batches of up to `rows` rows in prefill chunks of `chunk`.

    `weights` and `cache` are the dtypes in which the two are kept. `context` is the length of the static
    cache; None: that of the model, for Hugging Face's at most 512. Raises CheckpointError, with the
    remedy, for a model that cannot be loaded, a context that is too long, or a chunk that does not divide it.
    """
    if name.startswith(files.PREFIX):
        load = _transformers_module("loading").load
        model: Served = load(files.folder_of(name), rows, device, weights, context, chunk)
    else:
        model = checkpoint.build(name, rows, device, weights, context)
        model.rotary = model.rotary.to(cache)
    if model.config.context % chunk:
        # The last chunk of a long prompt is padded, and padding must not be written past the cache.
        raise CheckpointError(
            f"prefill_chunk {chunk} does not divide the context of {model.config.context}: set "
            f"LAUNCHBOUND_PREFILL_CHUNK to {_dividing_chunk(model.config.context, chunk)}, or where "
            "the model allows it LAUNCHBOUND_CONTEXT to a multiple of it"
        )
    return model


def _dividing_chunk(context: int, chunk: int) -> int:
    """The largest power of two up to `chunk` that divides `context` and leaves half of it for new tokens."""
    most = max(1, min(chunk, context // 2))
    return min(context & -context, 1 << (most.bit_length() - 1))


def open_tokenizer(name: str, vocabulary: int) -> ServedTokenizer:
    """The tokenizer of the model called `name`, which has `vocabulary` logits.

    Raises TokenizerError, with the remedy, where it is missing, broken or does not fit.
    """
    if name.startswith(files.PREFIX):
        found: ServedTokenizer = _transformers_module("tokens").load(files.folder_of(name), vocabulary)
        return found
    return native_tokenizer(name, vocabulary)


def native_tokenizer(name: str, vocabulary: int) -> Tokenizer:
    """As `open_tokenizer`, of a model of launchbound's own. The seeded sizes use that of `tiny`."""
    folder = checkpoint.folder_of(name)
    return Tokenizer.load(folder, vocabulary) if folder else Tokenizer.load(TINY_FOLDER).widened(vocabulary)


@cache
def content_hash(name: str) -> str:
    """Twelve hex digits that identify a model, read once per process."""
    if name.startswith(files.PREFIX):
        return files.content_hash(files.folder_of(name))
    return checkpoint.content_hash(name)


def architecture_hash(name: str) -> str:
    """Twelve hex digits that identify the code that a model compiles to: its configuration, not its weights.

    A model that cannot be read has those of its name: whoever loads it says why.
    """
    try:
        if name.startswith(files.PREFIX):
            shape = (files.folder_of(name) / CONFIG_FILE).read_bytes()
        else:
            shape = msgspec.json.encode(asdict(checkpoint.config_of(name)))
    except (CheckpointError, OSError):
        shape = name.encode(errors="surrogateescape")
    return hashlib.sha256(shape).hexdigest()[:12]


def revision(name: str) -> str | None:
    """The hub's commit of a Hugging Face model; None for a model that is none of the hub's."""
    return files.commit_of(files.folder_of(name)) if name.startswith(files.PREFIX) else None


def _transformers_module(name: str) -> ModuleType:
    """A module of `models.hf` that imports `transformers`, which launchbound's own models do not need.

    Raises CheckpointError where that is not installed.
    """
    try:
        return import_module(f"models.hf.{name}")
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise files.missing_library() from error
