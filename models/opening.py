"""A model by its name: a named size, a folder that `save` wrote, or `hf:` and a folder or a hub id."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import asdict
from functools import cached_property
from importlib import import_module
from types import ModuleType

import msgspec
import torch

from models.checkpoint import CONFIG_FILE, TINY_FOLDER, Checkpoint, CheckpointError
from models.hf import files
from models.served import Served, ServedTokenizer
from models.tokenizer import Tokenizer


class Opened(ABC):
    """A model whose name is resolved, once: what it is of, read from its files as it is asked for.

    Whatever is asked raises CheckpointError or TokenizerError, with the remedy, where the files are missing,
    broken, or none that can be served.
    """

    revision: str | None = None
    """The hub's commit of a Hugging Face model; None for a model that is none of the hub's."""

    def model(
        self,
        rows: int,
        device: torch.device,
        weights: torch.dtype,
        cache: torch.dtype,
        context: int | None = None,
        chunk: int = 1,
    ) -> Served:
        """The model, ready to serve batches of up to `rows` rows in prefill chunks of `chunk`.

        `weights` and `cache` are the dtypes in which the two are kept. `context` is the length of the static
        cache; None: that of the model, for Hugging Face's at most 512. Raises CheckpointError also for a
        context that is too long, and a chunk that does not divide it.
        """
        model = self._loaded(rows, device, weights, cache, context, chunk)
        if model.config.context % chunk:
            # The last chunk of a long prompt is padded, and padding must not be written past the cache.
            raise CheckpointError(
                f"prefill_chunk {chunk} does not divide the context of {model.config.context}: set "
                f"LAUNCHBOUND_PREFILL_CHUNK to {_dividing_chunk(model.config.context, chunk)}, or where "
                "the model allows it LAUNCHBOUND_CONTEXT to a multiple of it"
            )
        return model

    @abstractmethod
    def _loaded(
        self,
        rows: int,
        device: torch.device,
        weights: torch.dtype,
        cache: torch.dtype,
        context: int | None,
        chunk: int,
    ) -> Served:
        """The model, whether or not `chunk` divides its context."""

    @abstractmethod
    def tokenizer(self, vocabulary: int) -> ServedTokenizer:
        """Its tokenizer, for a model of `vocabulary` logits. Raises TokenizerError where it does not fit."""

    @property
    @abstractmethod
    def content_hash(self) -> str:
        """Twelve hex digits that identify the model, its weights included."""

    @property
    @abstractmethod
    def architecture(self) -> bytes:
        """What decides which code the model compiles to: its configuration, not its weights."""


class _Ours(Opened):
    """A model of launchbound's own. The seeded sizes use the tokenizer of `tiny`."""

    def __init__(self, name: str) -> None:
        self._checkpoint = Checkpoint(name)

    def _loaded(
        self,
        rows: int,
        device: torch.device,
        weights: torch.dtype,
        cache: torch.dtype,
        context: int | None,
        chunk: int,
    ) -> Served:
        model = self._checkpoint.build(rows, device, weights, context)
        model.rotary = model.rotary.to(cache)
        return model

    def tokenizer(self, vocabulary: int) -> ServedTokenizer:
        return native_tokenizer(self._checkpoint, vocabulary)

    @cached_property
    def content_hash(self) -> str:
        return self._checkpoint.content_hash

    @property
    def architecture(self) -> bytes:
        return msgspec.json.encode(asdict(self._checkpoint.config))


class _HuggingFace(Opened):
    """A folder of Hugging Face, which is fetched where the name is that of the hub."""

    def __init__(self, name: str) -> None:
        self._folder = files.folder_of(name)
        self.revision = files.commit_of(self._folder)

    def _loaded(
        self,
        rows: int,
        device: torch.device,
        weights: torch.dtype,
        cache: torch.dtype,
        context: int | None,
        chunk: int,
    ) -> Served:
        load = _transformers_module("loading").load
        model: Served = load(self._folder, rows, device, weights, context, chunk)
        return model

    def tokenizer(self, vocabulary: int) -> ServedTokenizer:
        found: ServedTokenizer = _transformers_module("tokens").load(self._folder, vocabulary)
        return found

    @cached_property
    def content_hash(self) -> str:
        return files.content_hash(self._folder)

    @property
    def architecture(self) -> bytes:
        return (self._folder / CONFIG_FILE).read_bytes()


def resolve(name: str) -> Opened:
    """The model called `name`. Raises CheckpointError where there is neither such a folder nor a way to
    fetch it.
    """
    return _HuggingFace(name) if name.startswith(files.PREFIX) else _Ours(name)


def architecture_hash(name: str) -> str:
    """Twelve hex digits that identify the code that a model compiles to.

    A model that cannot be read has those of its name: whoever loads it says why.
    """
    try:
        shape = resolve(name).architecture
    except (CheckpointError, OSError):
        shape = name.encode(errors="surrogateescape")
    return hashlib.sha256(shape).hexdigest()[:12]


def native_tokenizer(checkpoint: Checkpoint, vocabulary: int) -> Tokenizer:
    """That of a model of launchbound's own, with text for `vocabulary` logits."""
    if checkpoint.folder is not None:
        return Tokenizer.load(checkpoint.folder, vocabulary)
    return Tokenizer.load(TINY_FOLDER).widened(vocabulary)


def _dividing_chunk(context: int, chunk: int) -> int:
    """The largest power of two up to `chunk` that divides `context` and leaves half of it for new tokens."""
    most = max(1, min(chunk, context // 2))
    return min(context & -context, 1 << (most.bit_length() - 1))


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
