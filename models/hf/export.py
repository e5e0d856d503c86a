"""Exports the decoder as a Hugging Face Llama folder, which `transformers` loads without launchbound."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save as to_bytes
from torch import Tensor

from models.config import Config
from models.transformer import Transformer


def llama_config(config: Config, dtype: torch.dtype) -> dict[str, object]:
    """The fields of a `LlamaConfig` that describe `config`, for transformers 4 and 5."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocabulary,
        "hidden_size": config.width,
        "intermediate_size": config.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_width,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_epsilon,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "tie_word_embeddings": config.tied,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


def llama_state(model: Transformer) -> dict[str, Tensor]:
    """The tensors of `model` under Llama's names, the fused projections split."""
    c = model.config
    state = model.state_dict()
    parts = [c.heads * c.head_width, c.kv_heads * c.head_width, c.kv_heads * c.head_width]
    renamed = {
        "model.embed_tokens.weight": state["embedding.weight"],
        "model.norm.weight": state["norm.weight"],
    }
    if not c.tied:
        renamed["lm_head.weight"] = state["head.weight"]
    for layer in range(c.layers):
        ours = f"blocks.{layer}."
        theirs = f"model.layers.{layer}."
        query, key, value = torch.split(state[ours + "attention.query_key_value.weight"], parts)
        gate, up = state[ours + "feed_forward.gate_up.weight"].chunk(2)
        for name, tensor in (
            ("input_layernorm", state[ours + "attention_norm.weight"]),
            ("self_attn.q_proj", query),
            ("self_attn.k_proj", key),
            ("self_attn.v_proj", value),
            ("self_attn.o_proj", state[ours + "attention.output.weight"]),
            ("post_attention_layernorm", state[ours + "feed_forward_norm.weight"]),
            ("mlp.gate_proj", gate),
            ("mlp.up_proj", up),
            ("mlp.down_proj", state[ours + "feed_forward.down.weight"]),
        ):
            renamed[f"{theirs}{name}.weight"] = tensor
    return renamed


def export(model: Transformer, folder: Path | str) -> None:
    """Write `model` to `folder` as `config.json` and `model.safetensors`, in the dtype it has."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in llama_state(model).items()}
    config = llama_config(model.config, model.embedding.weight.dtype)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "model.safetensors").write_bytes(to_bytes(state, {"format": "pt"}))
