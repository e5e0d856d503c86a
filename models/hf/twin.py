"""The hollow twin of a `transformers` model: its own configuration with the widths shrunk."""

from __future__ import annotations

import copy
from contextlib import suppress

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from models.served import NoTwin

WIDTH = 16
WIDTHS: dict[str, int] = {
    "vocab_size": 64,
    "hidden_size": WIDTH,
    "word_embed_proj_dim": WIDTH,
    "head_dim": WIDTH // 2,
    "rotary_dim": WIDTH // 2,
    "intermediate_size": 2 * WIDTH,
    "n_inner": 2 * WIDTH,
    "ffn_dim": 2 * WIDTH,
    "ffn_hidden_size": 2 * WIDTH,
    "moe_intermediate_size": WIDTH,
    "shared_expert_intermediate_size": WIDTH,
}
"""Fields that are widths, and their size in the twin; absent or None fields stay so."""

KEY_HEADS = ("num_key_value_heads", "num_kv_heads")
LARGEST_MATRIX = 2**16
"""Elements. A larger one shows that a width has a name which is not in WIDTHS."""


def hollow_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """`config` with the same layers and small widths; heads stay grouped where they are."""
    small = copy.deepcopy(config)
    heads = config.num_attention_heads
    for name, width in WIDTHS.items():
        if getattr(config, name, None) is not None:
            with suppress(AttributeError):  # some are properties, which follow from the others
                setattr(small, name, width)
    small.num_attention_heads = 2
    for name in KEY_HEADS:
        if (grouped := getattr(config, name, None)) is not None:
            setattr(small, name, 2 if grouped == heads else 1)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(small, name, None)  # they may lie outside the small vocabulary
    return small


def hollow(model: PreTrainedModel) -> PreTrainedModel:
    """A model of `model`'s kind, device and dtype with kernels that take almost no time.

    Raises NoTwin where its configuration cannot be shrunk.
    """
    parameter = next(model.parameters())
    kind = type(model).__name__
    try:
        config = hollow_config(model.config)
        with torch.random.fork_rng(devices=[]):
            small: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, dtype=parameter.dtype, attn_implementation=model.config._attn_implementation
            )
    except Exception as error:  # an architecture may break anywhere at widths it never saw
        raise NoTwin(f"the configuration of {kind} cannot be shrunk ({error})") from error
    for name, module in small.named_modules():
        sizes = [p.numel() for p in module.parameters(recurse=False)]
        if not isinstance(module, nn.Embedding) and max(sizes, default=0) > LARGEST_MATRIX:
            raise NoTwin(f"{kind} has a width that WIDTHS does not list: {name} has {max(sizes)} weights")
    small.train(False).to(parameter.device)
    return small
