"""Loads a Hugging Face folder as a `Served` model, or raises with the reason in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from models.checkpoint import CONFIG_FILE, CheckpointError
from models.hf.adapter import HuggingFaceModel
from models.hf.check import check
from models.hf.files import read_json, weight_files

LONGEST_DEFAULT = 512
"""Default limit of the context in tokens: the cache is allocated, and attended to, in full."""

_LIMITS = ("max_position_embeddings", "attention_chunk_size")
"""A longer context is not served: there are no such positions, or attention is in chunks, not built."""


def load(
    folder: Path, rows: int, device: torch.device, dtype: torch.dtype, context: int | None, chunk: int
) -> HuggingFaceModel:
    """The model in `folder`, ready for batches of up to `rows` rows.

    `context` None: as long as the model allows, at most 512, if possible a multiple of `chunk`.
    Raises CheckpointError, with the remedy, where it cannot be read or served.
    """
    silence_transformers()
    config = load_config(folder)
    weight_files(folder)
    chosen = choose_context(config, folder, context, chunk)
    inner = _load_weights(folder, config, dtype)
    try:
        model = HuggingFaceModel(inner.to(device), rows, chosen).eval()
        check(model)
    except Exception as error:  # any architecture is tried, and may break anywhere
        raise CheckpointError(
            f"{folder}: {type(inner).__name__} cannot be stepped with a static cache of keys and values "
            f"({_in_one_line(error)}): serve a model of another architecture, such as Llama, GPT-2 or Qwen"
        ) from error
    return model


def silence_transformers() -> None:
    """Turn off transformers' progress bars and advice; errors are raised."""
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def load_config(folder: Path) -> PreTrainedConfig:
    """The configuration of `folder`. Raises CheckpointError where it is not that of a causal model."""
    fields = read_json(folder / CONFIG_FILE)
    kind = fields.get("model_type")
    if kind is None:
        remedy = f"serve {folder} without hf:" if "layers" in fields else "give the folder of a whole model"
        raise CheckpointError(f"{folder / CONFIG_FILE} names no model_type of Hugging Face: {remedy}")
    if kind not in transformers.CONFIG_MAPPING:
        why = "would run code of that folder, which is refused" if "auto_map" in fields else "is unknown"
        raise CheckpointError(
            f"{folder}: architecture '{kind}' {why} (transformers {transformers.__version__}): "
            "serve a model whose architecture transformers has"
        )
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # each architecture checks its own fields in its own way
        raise CheckpointError(
            f"{folder / CONFIG_FILE} is no configuration of '{kind}' ({_in_one_line(error)}): fetch it again"
        ) from error
    _causal(folder, config)
    return config


def _causal(folder: Path, config: PreTrainedConfig) -> None:
    causal = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and not config.is_encoder_decoder
    saved = config.architectures or []
    if not causal or (saved and not any(_is_causal_class(name, config) for name in saved)):
        raise CheckpointError(
            f"{folder} holds {', '.join(saved) or config.model_type}, which is no causal language model: "
            "give one that generates text, such as LlamaForCausalLM"
        )
    if config.get_text_config() is not config:
        raise CheckpointError(
            f"{folder} holds more than a language model ({config.model_type}): give a model of text alone"
        )
    if getattr(config, "quantization_config", None) is not None:
        raise CheckpointError(f"{folder} holds quantised weights: give the model's weights in a float type")


def _is_causal_class(name: str, config: PreTrainedConfig) -> bool:
    kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    classes = kind if isinstance(kind, tuple) else (kind,)
    return name in {one.__name__ for one in classes if one is not None}


def choose_context(config: PreTrainedConfig, folder: Path, requested: int | None, chunk: int) -> int:
    """Length of the static cache. Raises CheckpointError where `requested` is longer than the model's."""
    limits: dict[str, int] = {name: limit for name in _LIMITS if (limit := getattr(config, name, None))}
    narrowest = min(limits, key=lambda name: limits[name], default=None)
    if requested is not None:
        if narrowest is not None and requested > limits[narrowest]:
            what = (
                "" if narrowest == _LIMITS[0] else f", its {narrowest}, beyond which attention is in chunks"
            )
            raise CheckpointError(
                f"a context of {requested} is longer than the {limits[narrowest]} of {folder}{what} "
                f"({config.model_type}): set LAUNCHBOUND_CONTEXT to at most {limits[narrowest]}"
            )
        return requested
    most = min([LONGEST_DEFAULT, *limits.values()])
    return most - most % chunk or most


def _load_weights(folder: Path, config: PreTrainedConfig, dtype: torch.dtype) -> Any:  # noqa: ANN401
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=_attention(config),
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(
            f"the weights of {folder} do not fit its {CONFIG_FILE} ({_in_one_line(error)}): fetch both again"
        ) from error
    model, report = loaded
    misshapen = [one[0] if isinstance(one, tuple) else one for one in report["mismatched_keys"]]
    wrong = sorted({*report["missing_keys"], *misshapen})
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise CheckpointError(
            f"the weights of {folder} lack, or have in another shape, {', '.join(wrong[:3])}{more}, which "
            f"its {CONFIG_FILE} requires: fetch both again"
        )
    return model.eval()


def _attention(config: PreTrainedConfig) -> str:
    """`sdpa`, except where the model's attention has a part that torch's fused one does not support."""
    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    plain = getattr(config, "attn_logit_softcapping", None) is not None or not kind._supports_sdpa
    return "eager" if plain else "sdpa"


def _in_one_line(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:300]
