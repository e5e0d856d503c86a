"""The adapter of Hugging Face's models: tokenizer, hash, context, precision."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from models.checkpoint import CheckpointError
from models.hf.loading import HuggingFaceModel
from models.opening import content_hash, open_model, open_tokenizer
from models.served import Served
from service.step.buffers import allocate
from tests.support.hf_folders import CONTEXT, VOCABULARY, transformers, write_model

CPU = torch.device("cpu")
KINDS = ("llama", "gpt2", "qwen3")


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp(request.param) / "model", request.param)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("only") / "model", "llama")


def opened(folder: Path, rows: int = 2, context: int | None = None, chunk: int = 16) -> Served:
    return open_model(f"hf:{folder}", rows, CPU, torch.float32, torch.float32, context, chunk)


def test_the_context_is_the_models_own_in_whole_chunks_unless_a_shorter_one_is_requested(llama: Path) -> None:
    assert opened(llama).config.context == CONTEXT
    assert opened(llama, chunk=24).config.context == CONTEXT - CONTEXT % 24
    assert opened(llama, context=32).config.context == 32


def test_what_is_stepped_must_be_what_the_model_itself_computes(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = HuggingFaceModel.forward

    def one_place_off(self: HuggingFaceModel, tokens: torch.Tensor, positions: torch.Tensor, *rest: object):  # type: ignore[no-untyped-def]  # noqa: ANN202
        return right(self, tokens, positions + (positions > 0), *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(HuggingFaceModel, "forward", one_place_off)
    with pytest.raises(CheckpointError, match="by steps differ from its own"):
        opened(llama)


@pytest.mark.compiles
def test_a_prefill_of_any_length_is_one_compiled_graph(folder: Path) -> None:
    torch._dynamo.reset()
    model = opened(folder, chunk=64)
    buffers = allocate(model, [2], prefill_chunk=64)[2]
    graphs = list[object]()

    def noted(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    with torch.inference_mode():
        compiled = torch.compile(model.forward, fullgraph=True, backend=noted)
        for arguments in buffers.shapes("prefill"):
            compiled(*arguments)
    assert len(graphs) == 1


@pytest.mark.parametrize(
    "text", ["", "import os", "naïve → π\n\n", " <begin> and <|endoftext|> spelt out", "\x00é" * 9]
)
def test_ids_are_those_of_auto_tokenizer(llama: Path, text: str) -> None:
    expected = transformers.AutoTokenizer.from_pretrained(llama)(text)["input_ids"]
    assert open_tokenizer(f"hf:{llama}", VOCABULARY).encode(text) == expected
    assert expected[0] == 4096


def test_special_tokens_and_ids_without_a_token_are_no_text(llama: Path) -> None:
    tokenizer = open_tokenizer(f"hf:{llama}", VOCABULARY)
    ids = tokenizer.encode("a")
    assert tokenizer.decode([*ids, 0, VOCABULARY - 1, *ids]) == "aa"


def test_another_model_has_another_hash(llama: Path, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other", "llama", initializer_range=0.4)
    assert content_hash(f"hf:{llama}") != content_hash(f"hf:{other}")


def test_a_local_folder_needs_no_network(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert open_tokenizer(f"hf:{llama}", opened(llama).config.vocabulary).encode("a")


@pytest.mark.parametrize("weights", [torch.bfloat16, torch.float32])
def test_a_cache_in_bfloat16_is_written_and_read(llama: Path, weights: torch.dtype) -> None:
    model = open_model(f"hf:{llama}", 2, CPU, weights, torch.bfloat16, None, 16)
    cache = model.new_cache(2, torch.bfloat16)
    zeros = torch.zeros(2, dtype=torch.int64)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=weights == torch.float32):
        logits, _ = model(zeros.unsqueeze(1), zeros, zeros, cache)
    assert logits.isfinite().all()
    assert all(keys.dtype == torch.bfloat16 and keys[:, 0].any() for keys, _ in cache)


def test_eager_writes_no_tape_into_the_cache(folder: Path) -> None:
    model = opened(folder)
    cache = model.new_cache(2, torch.float32)
    zeros = torch.zeros(2, dtype=torch.int64)
    logits, _ = model(zeros.unsqueeze(1), zeros, zeros, cache)
    assert logits.grad_fn is not None
    assert not any(part.requires_grad for layer in cache for part in layer)
