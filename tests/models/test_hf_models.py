"""Hugging Face's models as they are served: tokenizer, hash, context, precision, windows."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from models.checkpoint import CheckpointError
from models.hf import loading
from models.hf.loading import HuggingFaceModel
from models.opening import resolve
from models.served import Served
from service.step.buffers import allocate
from tests.support.hf_folders import CONTEXT, VOCABULARY, WINDOW, transformers, write_model

CPU = torch.device("cpu")
KINDS = ("llama", "gpt2", "qwen3")


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp(request.param) / "model", request.param)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("only") / "model", "llama")


def opened(folder: Path, rows: int = 2, context: int | None = None, chunk: int = 16) -> Served:
    return resolve(f"hf:{folder}").model(rows, CPU, torch.float32, torch.float32, context, chunk)


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
    assert resolve(f"hf:{llama}").tokenizer(VOCABULARY).encode(text) == expected
    assert expected[0] == 4096


def test_special_tokens_and_ids_without_a_token_are_no_text(llama: Path) -> None:
    tokenizer = resolve(f"hf:{llama}").tokenizer(VOCABULARY)
    ids = tokenizer.encode("a")
    assert tokenizer.decode([*ids, 0, VOCABULARY - 1, *ids]) == "aa"


def test_another_model_has_another_hash(llama: Path, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other", "llama", initializer_range=0.4)
    assert resolve(f"hf:{llama}").content_hash != resolve(f"hf:{other}").content_hash


def test_a_local_folder_needs_no_network(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert resolve(f"hf:{llama}").tokenizer(opened(llama).config.vocabulary).encode("a")


@pytest.mark.parametrize("weights", [torch.bfloat16, torch.float32])
def test_a_cache_in_bfloat16_is_written_and_read(llama: Path, weights: torch.dtype) -> None:
    model = resolve(f"hf:{llama}").model(2, CPU, weights, torch.bfloat16, None, 16)
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


# Windows and positions: what a model computes beyond them, and their check

SLIDING: dict[str, dict[str, Any]] = {
    "gemma2": {},
    "gemma3": {},
    "mistral": {},
    "qwen3": {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
}
"""Layers that slide next to some that do not, and (mistral) only such that do."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", SLIDING)
def test_beyond_a_sliding_window_each_token_is_the_models_own(tmp_path: Path, kind: str) -> None:
    folder = write_model(tmp_path / "model", kind, **SLIDING[kind])
    model, own = opened(folder), transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    assert model.config.context == CONTEXT > 2 * WINDOW
    text = torch.randint(VOCABULARY, (1, CONTEXT), generator=torch.Generator().manual_seed(3))
    cache, zero = model.new_cache(1, torch.float32), torch.zeros(1, dtype=torch.int64)
    with torch.no_grad():
        model(text[:, :20], zero, zero + 19, cache)
        stepped = [model(text[:, at : at + 1], zero + at, zero, cache)[0] for at in range(20, CONTEXT)]
        expected = own(input_ids=text).logits[0, 20:]
    torch.testing.assert_close(torch.cat(stepped), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SLIDING)
def test_where_a_window_is_not_kept_the_context_ends_with_it(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_model(tmp_path / "model", kind, **SLIDING[kind])
    right = loading._mask
    monkeypatch.setattr(
        loading, "_mask", lambda places, columns, dtype, _: right(places, columns, dtype, None)
    )
    assert opened(folder).config.context == WINDOW
    assert f"beyond its window of {WINDOW} tokens differ" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match=f"set LAUNCHBOUND_CONTEXT to at most {WINDOW}"):
        opened(folder, context=64)
    assert opened(folder, context=WINDOW).config.context == WINDOW


ORIGINAL = 64
"""Tokens beyond which LongRoPE scales the positions of the whole sequence, those in the cache too."""


@pytest.mark.slow
def test_the_context_of_longrope_ends_where_its_positions_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    factors = {"short_factor": [1.0] * 6, "long_factor": [1 + 1.5 * n for n in range(6)]}
    rotary = {"rope_type": "longrope", "rope_theta": 1e4, **factors}
    changes = {"original_max_position_embeddings": ORIGINAL, "rope_parameters": rotary}
    folder = write_model(tmp_path / "model", "phi3", **changes)
    assert opened(folder).config.context == ORIGINAL
    assert f"the original length of its rotary positions of {ORIGINAL} tokens" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match=f"set LAUNCHBOUND_CONTEXT to at most {ORIGINAL}"):
        opened(folder, context=2 * ORIGINAL)


@pytest.mark.slow
@pytest.mark.parametrize("window", [64, 512])
def test_a_window_that_the_library_keeps_for_itself_bounds_the_context(tmp_path: Path, window: int) -> None:
    attention = {"attention_types": [[["global", "local"], 1]], "window_size": window}
    folder = write_model(tmp_path / "model", "gpt_neo", num_layers=2, num_heads=4, **attention)
    assert opened(folder).config.context == window
