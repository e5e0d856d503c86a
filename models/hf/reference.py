"""Exports a model of ours for other runtimes: as a Llama of Hugging Face, with greedy tokens to repeat.

Run as a process, `python -m models.hf.reference MODEL FOLDER`: the arguments of `make` come in on standard
input, and what it returns goes out on standard output, both as JSON.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_bytes
from torch import Tensor

from models.checkpoint import TINY_FOLDER, Checkpoint, CheckpointError
from models.config import Config
from models.opening import native_tokenizer
from models.tokenizer import END_OF_TEXT, TOKENIZER_FILE, Tokenizer
from models.transformer import Transformer


def make(
    name: str, folder: Path, *, texts: list[str], count: int, prompt_tokens: int, new_tokens: int
) -> dict[str, Any]:
    """Write the model called `name` to `folder` in float32, with its tokenizer.

    Returns what `loadtests.peers.reference` reads: `count` prompts of `prompt_tokens` tokens, cut from
    `texts`, with `new_tokens` greedy ones each, by launchbound's own forward in float32, one thread. Raises
    CheckpointError for a model that cannot be exported, and where `texts` hold too few prompts that long.
    """
    checkpoint = Checkpoint(name)
    model = checkpoint.build(count)
    source = checkpoint.folder or TINY_FOLDER
    tokenizer = native_tokenizer(checkpoint, model.config.vocabulary)
    prompts = _prompts(tokenizer, texts, count, prompt_tokens)
    export(model, folder)
    shutil.copy(source / TOKENIZER_FILE, folder / TOKENIZER_FILE)
    # Converters want all of them to exist; no prompt is encoded by them.
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token"), END_OF_TEXT)
    described = {"tokenizer_class": "PreTrainedTokenizerFast", **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(described, indent=2) + "\n")
    tokens, margins = greedy(model, torch.tensor(prompts), new_tokens)
    rows = [
        {
            "prompt": tokenizer.decode(prompt),
            "prompt_tokens": prompt,
            "completion": tokenizer.decode(new),
            "completion_tokens": new,
            "margins": margin,
        }
        for prompt, new, margin in zip(prompts, tokens.tolist(), margins.tolist(), strict=True)
    ]
    return {
        "model_hash": checkpoint.content_hash,
        "parameters": sum(tensor.numel() for tensor in llama_state(model).values()),
        "vocabulary": model.config.vocabulary,
        "rows": rows,
    }


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
        "torch_dtype": str(dtype).removeprefix("torch."),
        **dict.fromkeys(("attention_bias", "mlp_bias"), False),
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
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


def _prompts(tokenizer: Tokenizer, texts: list[str], count: int, length: int) -> list[list[int]]:
    """The beginnings of `texts` that have `length` tokens, also when their text is encoded again."""
    found = list[list[int]]()
    for text in texts:
        tokens = tokenizer.encode(text)[:length]
        # The cut may split what the tokenizer would join: then the text would be other tokens.
        if len(tokens) == length and tokenizer.encode(tokenizer.decode(tokens)) == tokens:
            found.append(tokens)
    if len(found) < count:
        raise CheckpointError(
            f"only {len(found)} of {len(texts)} texts begin with {length} tokens: {count} are needed"
        )
    return found[:count]


@torch.inference_mode()
def greedy(model: Transformer, prompts: Tensor, new_tokens: int) -> tuple[Tensor, Tensor]:
    """Continue `prompts`, int64 [batch, tokens] of equal lengths, by `new_tokens`.

    Returns tokens int64 [batch, new_tokens], and the distance of their logits to the second largest ones,
    float32 of the same shape.
    """
    batch, length = prompts.shape
    cache = model.new_cache(batch, model.embedding.weight.dtype)
    zero = torch.zeros(batch, dtype=torch.int64)
    step, positions, last = prompts, zero, torch.full((batch,), length - 1)
    tokens, margins = list[Tensor](), list[Tensor]()
    for count in range(new_tokens):
        logits, token = model(step, positions, last, cache)
        largest = logits.topk(2, dim=-1).values
        tokens.append(token)
        margins.append(largest[:, 0] - largest[:, 1])
        step, positions, last = token.unsqueeze(1), torch.full((batch,), length + count), zero
    return torch.stack(tokens, dim=1), torch.stack(margins, dim=1)


def main() -> None:
    """The process; a model that cannot be exported ends it with code 2 and one line."""
    name, folder = sys.argv[1:]
    torch.set_num_threads(1)
    try:
        reference = make(name, Path(folder), **json.load(sys.stdin))
    except CheckpointError as error:
        print(f"launchbound: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    json.dump(reference, sys.stdout)


if __name__ == "__main__":
    main()
