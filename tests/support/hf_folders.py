"""Folders of very small Hugging Face models with random weights and a tokenizer that begins every prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers.processors import TemplateProcessing

from models.checkpoint import TINY_FOLDER
from models.tokenizer import END_OF_TEXT

transformers: Any = pytest.importorskip("transformers")  # a test module that imports this is skipped
LAYERS = 2
VOCABULARY = 4100
"""Three more than the tokenizer has: embeddings are often padded."""

CONTEXT = 512
WINDOW = 16
"""Tokens that a sliding layer attends to: fewer than a prompt has, of several chunks."""

BEGIN, END = 4096, 0


def configuration(kind: str, **changes: Any) -> Any:
    """A shape of `kind` (see below) with two layers; weights spread far enough to have a taste."""
    common: dict[str, Any] = {
        "vocab_size": VOCABULARY, "hidden_size": 48, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
        "max_position_embeddings": CONTEXT, "initializer_range": 0.3, "bos_token_id": BEGIN,
        "eos_token_id": END, "pad_token_id": None,
    }  # fmt: skip
    grouped = {"intermediate_size": 64, "num_key_value_heads": 2}
    # Not tied: a model of random weights would repeat the last token, whatever it attends to.
    gemma = {**grouped, "head_dim": 16, "sliding_window": WINDOW, "tie_word_embeddings": False}
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "llama": (transformers.LlamaConfig, grouped),
        "gpt2": (transformers.GPT2Config, {}),
        "qwen3": (transformers.Qwen3Config, {**grouped, "head_dim": 16}),
        "gemma2": (transformers.Gemma2Config, gemma),
        "gemma3": (
            transformers.Gemma3TextConfig,
            {**gemma, "layer_types": ["sliding_attention", "full_attention"]},
        ),
        "phi3": (transformers.Phi3Config, grouped),
        "gpt_neo": (transformers.GPTNeoConfig, {}),
        "mistral": (transformers.MistralConfig, {**grouped, "sliding_window": WINDOW}),
    }
    build, own = kinds[kind]
    return build(**{**common, **own, **changes})


def write_tokenizer(folder: Path) -> None:
    """Tiny's tokens and one that begins every prompt, as Llama's does."""
    inner = tokenizers.Tokenizer.from_file(str(TINY_FOLDER / "tokenizer.json"))
    inner.add_special_tokens(["<begin>"])
    inner.post_processor = TemplateProcessing(single="<begin> $A", special_tokens=[("<begin>", BEGIN)])
    assert (inner.token_to_id("<begin>"), inner.token_to_id(END_OF_TEXT)) == (BEGIN, END)
    inner.save(str(folder / "tokenizer.json"))


def write_model(folder: Path, kind: str, **changes: Any) -> Path:
    """A whole folder as the library itself writes it; `changes` go into the configuration."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = transformers.AutoModelForCausalLM.from_config(configuration(kind, **changes))
    model.save_pretrained(folder)
    write_tokenizer(folder)
    if kind.startswith("gemma"):
        # The library's own class for Gemma adds tokens, which are more than the model has.
        plain = json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
        (folder / "tokenizer_config.json").write_text(plain)
    return folder
