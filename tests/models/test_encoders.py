"""Encoders of Hugging Face folders are called on inputs of the sizes in their configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from models.checkpoint import CheckpointError
from models.naming import is_called, is_encoder, names_module
from models.opening import resolve
from models.workload import load_module
from tests.support.hf_folders import transformers, write_model

SMALL: dict[str, Any] = {
    "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 64,
}  # fmt: skip
CLIP = {**SMALL, "max_position_embeddings": 16}
WHISPER: dict[str, Any] = {
    "vocab_size": 100, "num_mel_bins": 8, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
    "max_source_positions": 12, "max_target_positions": 8, "pad_token_id": 1, "bos_token_id": 2,
    "eos_token_id": 3, "decoder_start_token_id": 2,
}  # fmt: skip
KINDS: dict[str, tuple[str, dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "BertForMaskedLM": ("BertConfig", SMALL, {"input_ids": (3, 128), "attention_mask": (3, 128)}),
    "ViTForImageClassification": (
        "ViTConfig", {**SMALL, "image_size": 32, "patch_size": 8}, {"pixel_values": (3, 3, 32, 32)},
    ),
    "CLIPTextModel": ("CLIPTextConfig", CLIP, {"input_ids": (3, 16), "attention_mask": (3, 16)}),
    "WhisperForConditionalGeneration": ("WhisperConfig", WHISPER, {"input_features": (3, 8, 24)}),
}  # fmt: skip


def write(folder: Path, kind: str) -> str:
    config, fields, _ = KINDS[kind]
    torch.manual_seed(0)
    getattr(transformers, kind)(getattr(transformers, config)(**fields)).save_pretrained(folder)
    return f"hf:{folder}"


@pytest.mark.parametrize("kind", KINDS)
def test_an_encoder_is_called_on_inputs_of_its_sizes(tmp_path: Path, kind: str) -> None:
    name = write(tmp_path / "model", kind)
    assert is_encoder(name)
    assert is_called(name)
    assert not names_module(name)
    loaded = load_module(name, torch.device("cpu"), torch.bfloat16)
    args, kwargs = loaded.inputs(3, 0)
    assert (args, {key: tuple(value.shape) for key, value in kwargs.items()}) == ((), KINDS[kind][2])
    with torch.inference_mode():
        found = loaded.module(**kwargs).last_hidden_state
    assert (found.shape[0], found.dtype) == (3, torch.bfloat16)
    assert not torch.equal(found[0], found[1])
    assert next(iter(loaded.module.parameters())).requires_grad
    assert loaded.content_hash == load_module(name, torch.device("cpu"), torch.float32).content_hash


def test_a_causal_model_and_a_folder_of_something_else_are_no_encoders(tmp_path: Path) -> None:
    assert not is_encoder(f"hf:{write_model(tmp_path / 'llama', 'llama')}")
    assert not is_encoder(f"hf:{tmp_path / 'nowhere'}")
    folder = tmp_path / "other"
    folder.mkdir()
    for content in ("[]", "{", json.dumps({"model_type": "bert", "architectures": ["BertLMHeadModel"]})):
        (folder / "config.json").write_text(content)
        assert not is_encoder(f"hf:{folder}")
    assert not is_encoder(str(folder))


def test_of_the_id_of_an_encoder_on_the_hub_the_folder_is_named_that_it_is_fetched_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = write(tmp_path / "model", "BertForMaskedLM")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(tmp_path / "model"))
    assert not is_called("hf:someone/encoder")
    with pytest.raises(CheckpointError) as refused:
        resolve("hf:someone/encoder").model(1, torch.device("cpu"), torch.float32, torch.float32, None, 16)
    said = "holds BertForMaskedLM, which is no causal language model: an encoder is measured by its folder, "
    assert str(refused.value).endswith(f"{said}`launchbound run {name}`")
    assert is_called(name)


def test_an_encoder_without_its_weights_is_refused(tmp_path: Path) -> None:
    name = write(tmp_path / "model", "BertForMaskedLM")
    config = tmp_path / "model" / "config.json"
    config.write_text(config.read_text().replace('"num_hidden_layers": 1', '"num_hidden_layers": 2'))
    with pytest.raises(CheckpointError, match=r"lack encoder\.layer\.1"):
        load_module(name, torch.device("cpu"), torch.float32)
    (tmp_path / "model" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"holds no model\.safetensors"):
        load_module(name, torch.device("cpu"), torch.float32)
