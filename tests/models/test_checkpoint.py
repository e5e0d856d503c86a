"""Models and tokenizers by name: weights come from safetensors only, and every error names its remedy."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from models import checkpoint
from models.checkpoint import TINY_FOLDER, Checkpoint, CheckpointError
from models.config import CONFIGS, Config
from models.opening import architecture_hash, resolve
from models.served import Served
from models.tokenizer import END_OF_TEXT, Tokenizer, TokenizerError
from models.transformer import Transformer
from tests.support.small_models import SMALL, greedy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A good checkpoint of a very small model."""
    checkpoint.save(Transformer(SMALL, 1, seed=5), tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("tied", [True, False])
def test_a_saved_model_comes_back_equal(tmp_path: Path, tied: bool) -> None:
    config = Config(
        layers=1, width=16, heads=2, kv_heads=1, head_width=8, hidden=32, vocabulary=64, tied=tied
    )
    model = Transformer(config, 1, seed=5)
    checkpoint.save(model, tmp_path, torch.float32)
    back = Checkpoint(tmp_path).build(2)
    assert back.config == config
    assert (back.head.weight is back.embedding.weight) == tied
    for name, tensor in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_has_the_requested_dtype_and_is_trainable_for_eager(folder: Path, dtype: torch.dtype) -> None:
    model = Checkpoint(folder).build(1, "cpu", dtype)
    assert not model.training
    assert all(p.dtype == dtype and p.requires_grad for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "parameters"), [("tiny", 3_148_224), ("small", 123_882_240), ("base", 981_534_720)]
)
def test_a_named_size_has_the_parameters_that_are_stated(name: str, parameters: int) -> None:
    with torch.device("meta"):
        model = Transformer(CONFIGS[name], 1)
    assert sum(tensor.numel() for tensor in model.parameters()) == parameters


def test_tiny_ships_in_less_than_10_megabytes_closes_an_obvious_line_and_has_its_card() -> None:
    model, tokenizer = Checkpoint("tiny").build(1), Tokenizer.load(TINY_FOLDER)
    assert model.config == CONFIGS["tiny"]
    assert (TINY_FOLDER / "model.safetensors").stat().st_size < 10_000_000
    for prompt, expected in {"import o": "s", "def __init__(": "self"}.items():
        tokens, _ = greedy(model, [tokenizer.encode(prompt)], new=4)
        assert re.match(rf"{expected}\b", tokenizer.decode(tokens[0].tolist()))
    assert Checkpoint("tiny").content_hash in (TINY_FOLDER / "MODEL_CARD.md").read_text()


def test_equal_weights_have_equal_hashes_and_other_weights_another(tmp_path: Path, folder: Path) -> None:
    checkpoint.save(Transformer(SMALL, 1, seed=5), tmp_path / "same")
    checkpoint.save(Transformer(SMALL, 1, seed=6), tmp_path / "other")
    assert Checkpoint(folder).content_hash == Checkpoint(tmp_path / "same").content_hash
    assert Checkpoint(folder).content_hash != Checkpoint(tmp_path / "other").content_hash
    assert Checkpoint("small").content_hash != Checkpoint("base").content_hash


def rewrite_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, folder / "model.safetensors", {"format": "pt"})


def configure(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    kept = json.loads(file.read_text()).items()
    new = {name: value for name, value in changes.items() if value is not None}
    file.write_text(json.dumps({name: value for name, value in kept if name not in changes} | new))


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def pickle_instead(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no weights": (lambda f: (f / "model.safetensors").unlink(), r"no model\.safetensors.*models\.train"),
    "pickles": (pickle_instead, r"pytorch_model\.bin.*refused.*convert"),
    "truncated": (truncate, r"corrupt or truncated.*again"),
    "tensor missing": (
        lambda f: rewrite_weights(f, lambda s: s.pop("norm.weight")), r"norm\.weight is missing"
    ),
    "tensor unknown": (
        lambda f: rewrite_weights(f, lambda s: s.update(bias=torch.zeros(1))), "bias is unknown"
    ),
    "tensor misshapen": (
        lambda f: rewrite_weights(f, lambda s: s.update({"norm.weight": torch.zeros(3)})),
        r"norm\.weight has shape \[3\] instead of \[16\]",
    ),
    "other model's config": (lambda f: configure(f, layers=7), r"is missing.*more.*one training"),
    "no config": (lambda f: (f / "config.json").unlink(), r"cannot read .*config\.json.*models\.train"),
    "config not JSON": (lambda f: (f / "config.json").write_text("{layers"), "not a configuration.*again"),
    "config with a field too few": (lambda f: configure(f, width=None), "width.*again"),
    "config with a field too many": (lambda f: configure(f, contxt=9), "unknown fields.*contxt"),
    "config with a size beyond 64 bits": (
        lambda f: configure(f, hidden=10**30), "no tensor can have.*again"
    ),
    "config with a product beyond 64 bits": (
        lambda f: configure(f, vocabulary=10**18), "no tensor can have.*again"
    ),
    "config with odd heads": (lambda f: configure(f, heads=3, kv_heads=2), "multiple of kv_heads"),
    "Hugging Face's config": (
        lambda f: (f / "config.json").write_text('{"model_type": "llama"}'), "serve it as hf:"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_folder_is_refused_with_the_remedy(folder: Path, name: str) -> None:
    breaks, message = BROKEN[name]
    breaks(folder)
    with pytest.raises(CheckpointError, match=message):
        Checkpoint(folder).build(1)


@pytest.mark.parametrize("name", ["/no/such/folder", "hf:somewhere"])
def test_what_is_no_model_of_ours_is_refused_with_the_names_there_are(name: str) -> None:
    with pytest.raises(CheckpointError, match="tiny, small, base"):
        Checkpoint(name).build(1)


# By name

CPU = torch.device("cpu")


def opened(name: str, context: int | None = None) -> Served:
    return resolve(name).model(2, CPU, torch.float32, torch.float32, context, 64)


def test_a_shorter_context_changes_no_token() -> None:
    whole = opened("tiny")
    short = opened("tiny", context=128)
    assert (whole.config.context, short.config.context) == (512, 128)
    assert isinstance(whole, Transformer)
    assert isinstance(short, Transformer)
    prompts = [[5, 6, 7], list(range(100, 190))]
    assert torch.equal(greedy(whole, prompts, 8)[0], greedy(short, prompts, 8)[0])


def test_models_of_one_configuration_compile_to_the_same_code_wherever_they_lie(tmp_path: Path) -> None:
    copied = shutil.copytree(TINY_FOLDER, tmp_path / "copied")
    assert architecture_hash(str(copied)) == architecture_hash("tiny")
    shallow = json.loads((copied / "config.json").read_text()) | {"layers": 1}
    (copied / "config.json").write_text(json.dumps(shallow))
    names = ["tiny", "small", "base", str(copied), str(tmp_path / "none"), "hf:/no/such/folder"]
    assert len({architecture_hash(name) for name in names}) == len(names)


# Any text makes ids, any ids make text, and a stream of tokens never shows half a character


TOKENIZER = Tokenizer.load(TINY_FOLDER)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(TEXT)
def test_decoding_returns_the_encoded_text(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@given(st.lists(st.integers(0, TOKENIZER.vocabulary - 1)))
def test_streamed_pieces_join_to_the_decoded_whole_for_any_tokens(tokens: list[int]) -> None:
    stream = TOKENIZER.stream()
    pieces = [stream.push(token) for token in tokens]
    assert "".join(pieces) + stream.flush() == TOKENIZER.decode(tokens)


@given(TEXT)
def test_a_stream_of_real_text_never_emits_a_broken_character(text: str) -> None:
    stream = TOKENIZER.stream()
    pieces = [stream.push(token) for token in TOKENIZER.encode(text.replace("\ufffd", ""))]
    assert "\ufffd" not in "".join(pieces)
    assert stream.flush() == ""


def test_the_end_of_text_spelt_out_in_a_prompt_is_text_and_its_token_is_none() -> None:
    tokens = TOKENIZER.encode(END_OF_TEXT)
    assert TOKENIZER.end_of_text not in tokens
    assert TOKENIZER.decode([*tokens, TOKENIZER.end_of_text, *tokens]) == 2 * END_OF_TEXT


@pytest.mark.parametrize("token", [-1, 4096])
def test_an_id_out_of_range_is_refused(token: int) -> None:
    with pytest.raises(TokenizerError, match="0 to 4095"):
        TOKENIZER.decode([token])


def test_a_seeded_size_has_text_for_every_logit_and_that_of_tiny_for_its_tokens() -> None:
    tokenizer = resolve("small").tokenizer(CONFIGS["small"].vocabulary)
    assert tokenizer.vocabulary == CONFIGS["small"].vocabulary > TOKENIZER.vocabulary
    tokens = TOKENIZER.encode("def mean(values):")
    assert tokenizer.encode("def mean(values):") == tokens
    beyond = [*tokens, TOKENIZER.vocabulary, tokenizer.vocabulary - 1]
    assert tokenizer.decode(beyond) == "def mean(values):\ufffd\ufffd"
    stream = tokenizer.stream()
    assert "".join(map(stream.push, beyond)) + stream.flush() == tokenizer.decode(beyond)
    assert tokenizer.longest_token_bytes == TOKENIZER.longest_token_bytes
    with pytest.raises(TokenizerError):
        tokenizer.decode([tokenizer.vocabulary])


def test_a_lone_surrogate_is_refused_with_its_place() -> None:
    with pytest.raises(TokenizerError, match="character 2"):
        TOKENIZER.encode("ab\ud800")


def test_a_tokenizer_that_does_not_fit_the_model_is_refused() -> None:
    with pytest.raises(TokenizerError, match=r"4096 tokens but the model 64.*trained with"):
        Tokenizer.load(TINY_FOLDER, vocabulary=64)


WORDS = tokenizers.models.WordLevel({END_OF_TEXT: 0, "naïve ": 1}, unk_token=END_OF_TEXT)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"tokenizer\.json.*copy"),
        ('{"version": "1.0", "model"', r"not a tokenizer.*again"),
        (tokenizers.Tokenizer(WORDS).to_str(), "not a byte-level"),
    ],
    ids=["missing", "broken", "of words"],
)
def test_a_file_that_is_missing_broken_or_not_byte_level_is_refused(
    tmp_path: Path, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.load(tmp_path)
