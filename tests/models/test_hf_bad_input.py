"""Every fault of a Hugging Face model is reported at start in one sentence with its remedy."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file

from models import checkpoint
from models.checkpoint import CheckpointError
from models.hf import files
from models.opening import resolve
from models.tokenizer import TokenizerError
from models.transformer import Transformer
from service.engine import loop
from service.engine.inbox import LocalInbox
from service.engine.text import JobError, encode_prompts
from service.records import EngineSettings
from tests.models.test_checkpoint import configure, pickle_instead, rewrite_weights, truncate
from tests.support.hf_folders import BEGIN, VOCABULARY, transformers, write_model
from tests.support.small_models import SMALL

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("whole") / "model", "llama", vocab_size=4100)


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A good folder, to be broken."""
    return Path(shutil.copytree(whole, tmp_path / "model"))


def open_(name: str, context: int | None = None) -> None:
    opened = resolve(name)
    model = opened.model(2, CPU, torch.float32, torch.float32, context, 16)
    opened.tokenizer(model.config.vocabulary)


def shard(folder: Path) -> None:
    """The weights in two files and an index, as large models come."""
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(state)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: state[name] for name in part}, folder / file, {"format": "pt"})
    where = {name: file for file, part in parts.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


def lose_shard(folder: Path) -> None:
    shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()


def name_elsewhere(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../../a.safetensors"}}')


def classify(folder: Path) -> None:
    model = transformers.LlamaForSequenceClassification.from_pretrained(folder)
    model.save_pretrained(folder)


def mamba(folder: Path) -> None:
    config = transformers.MambaConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=1, state_size=4
    )
    transformers.MambaForCausalLM(config).save_pretrained(folder)


def ours(folder: Path) -> None:
    checkpoint.save(Transformer(SMALL, 1), folder)


def shrink_vocabulary(folder: Path) -> None:
    write_model(folder, "llama", vocab_size=BEGIN - 1, bos_token_id=1)


def adapter(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')


def other(folder: Path, name: str) -> None:
    (folder / "config.json").unlink()
    (folder / name).mkdir()


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no weights": (lambda f: (f / "model.safetensors").unlink(), r"holds no model\.safetensors: give"),
    "pickles": (pickle_instead, r"pytorch_model\.bin.*refused.*save_pretrained"),
    "truncated": (truncate, r"corrupt or truncated.*fetch it again"),
    "shard missing": (lose_shard, r"lacks model-00002-of-00002\.safetensors, which.*fetch"),
    "shard elsewhere": (name_elsewhere, "names no weights of this folder"),
    "tensor missing": (
        lambda f: rewrite_weights(f, lambda s: s.pop("model.norm.weight")),
        r"lack.* model\.norm\.weight, which.*fetch both",
    ),
    "other model's config": (lambda f: configure(f, hidden_size=96), r"shape, .*weight and \d+ more.*fetch"),
    "adapter": (adapter, r"adapter_config\.json and no config\.json: it is an adapter.*merge_and_unload"),
    "hub cache": (lambda f: other(f, "snapshots"), r"the hub's cache.*one of the folders in its snapshots"),
    "pipeline": (lambda f: other(f, "model_index.json"), "a pipeline for images.*one that generates text"),
    "GGUF": (lambda f: other(f, "model.Q4.gguf"), r"model\.Q4\.gguf.*llama\.cpp.*in safetensors"),
    "NaN": (
        lambda f: rewrite_weights(f, lambda s: s["model.norm.weight"].fill_(torch.nan)),
        r"hold NaN or infinite values \(model\.norm\.weight\).*again",
    ),
    "no config": (lambda f: (f / "config.json").unlink(), r"cannot read .*config\.json.*save_pretrained"),
    "config without a kind": (lambda f: (f / "config.json").write_text("{}"), "names no model_type.*give"),
    "config of ours": (ours, "names no model_type.*without hf:"),
    "unknown architecture": (lambda f: configure(f, model_type="hal"), "'hal' is unknown.*serve a model"),
    "architecture with code": (
        lambda f: configure(f, model_type="hal", auto_map={"AutoConfig": "code.Hal"}), "'hal' would run code"
    ),
    "classifier": (classify, "LlamaForSequenceClassification, which is no causal language model"),
    "no keys and values": (mamba, "MambaForCausalLM cannot be stepped.*serve a model of another"),
    "quantised": (lambda f: configure(f, quantization_config={"quant_method": "gptq"}), "quantised"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), r"no .*tokenizer\.json: write it"),
    "tokenizer larger than the embedding": (shrink_vocabulary, "4097 tokens but the model only 4095"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_folder_is_refused_with_the_remedy(folder: Path, name: str) -> None:
    breaks, message = BROKEN[name]
    breaks(folder)
    with pytest.raises((CheckpointError, TokenizerError), match=message) as refusal:
        open_(f"hf:{folder}")
    assert "\n" not in str(refusal.value)


def test_weights_in_several_files_are_loaded_as_a_hugging_face_model_alone(folder: Path) -> None:
    shard(folder)
    open_(f"hf:{folder}")
    with pytest.raises(CheckpointError, match="serve it as hf:"):
        open_(str(folder))


@pytest.mark.parametrize("name", ["tiny", "hf"])
def test_a_context_longer_than_the_models_is_refused(whole: Path, name: str) -> None:
    with pytest.raises(
        CheckpointError, match=r"context of 1024 is longer than the 512 of .*: set LAUNCHBOUND_CONTEXT"
    ):
        open_("tiny" if name == "tiny" else f"hf:{whole}", context=1024)


@pytest.mark.parametrize(("context", "chunk"), [(40, 8), (10, 2)])
def test_a_context_that_chunks_do_not_divide_is_refused_with_the_chunk_that_serves_it(
    whole: Path, context: int, chunk: int
) -> None:
    why = f"prefill_chunk 16 does not divide the context of {context}"
    with pytest.raises(CheckpointError, match=f"{why}: set LAUNCHBOUND_PREFILL_CHUNK to {chunk},"):
        open_(f"hf:{whole}", context=context)


def test_a_file_is_no_folder(whole: Path) -> None:
    with pytest.raises(CheckpointError, match="is a file: give the folder that holds the model"):
        files.folder_of(f"hf:{whole / 'model.safetensors'}")


def test_an_added_token_that_the_model_has_no_embedding_of_is_refused_in_prompts_only(folder: Path) -> None:
    inner = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    inner.add_special_tokens(["[PAD]"])
    inner.save(str(folder / "tokenizer.json"))
    logits = inner.token_to_id("[PAD]")
    tokenizer = resolve(f"hf:{folder}").tokenizer(logits)
    assert tokenizer.vocabulary == logits
    with pytest.raises(
        JobError, match=r"\[PAD\], a token that the model does not have: remove it"
    ) as refusal:
        encode_prompts(["a", "a[PAD]"], tokenizer, 64, 1)
    assert refusal.value.problem.param == "prompts"
    assert encode_prompts(["a"], tokenizer, 64, 1) == [inner.encode("a").ids]


@pytest.mark.parametrize("name", ["/no/such/folder", "a/b/c", "a/b@", "a/b@-c", ""])
def test_what_is_neither_a_folder_nor_a_hub_id_is_refused_without_the_network(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", None)
    with pytest.raises(CheckpointError, match="no folder"):
        open_(f"hf:{name}")


def test_a_hub_id_is_fetched_without_pickles_and_its_failure_is_one_sentence(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloads: list[object] = []

    def fetch(name: str, revision: str | None, allow_patterns: list[str]) -> str:
        downloads.append((name, revision, allow_patterns))
        if name == "someone/nothing":
            raise OSError("no route to the hub\nand much more")
        return str(whole)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert files.folder_of("hf:someone/model") == files.folder_of("hf:someone/model@v1.0") == whole
    patterns = ["*.json", "*.safetensors"]
    assert downloads == [("someone/model", None, patterns), ("someone/model", "v1.0", patterns)]
    with pytest.raises(
        CheckpointError, match=r"no model of that id \(OSError: no route to the hub\): check"
    ) as refusal:
        files.folder_of("hf:someone/nothing")
    assert "\n" not in str(refusal.value)


COMMITS = ["0123456789abcdef0123456789abcdef01234567", "89abcdef0123456789abcdef0123456789abcdef"]


@pytest.fixture
def hub_cache(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The hub's local cache with two commits of a model, of which `main` is the second."""
    model = tmp_path / "hub" / "models--someone--model"
    for commit in COMMITS:
        shutil.copytree(whole, model / "snapshots" / commit)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(COMMITS[1])
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    files.folder_of.cache_clear()
    yield model
    files.folder_of.cache_clear()


def test_a_hub_id_is_the_commit_that_it_names_and_only_what_the_hub_has_has_one(
    whole: Path, hub_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert resolve("tiny").revision is None
    assert resolve(f"hf:{whole}").revision is None
    for commit in COMMITS:
        assert resolve(f"hf:{hub_cache / 'snapshots' / commit}").revision == commit
        assert resolve(f"hf:someone/model@{commit}").revision == commit
        assert files.folder_of(f"hf:someone/model@{commit}") == hub_cache / "snapshots" / commit
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["hf:someone/model", "hf:someone/model@main"])
def test_a_hub_id_without_a_commit_says_which_it_is(
    hub_cache: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert resolve(name).revision == COMMITS[1]
    assert f"what it is now is hf:someone/model@{COMMITS[1]}\n" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match="check the name, its revision"):
        files.folder_of("hf:someone/model@v9")


def test_without_transformers_the_error_names_its_installation(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    for module in ("loading", "tokens"):
        monkeypatch.delitem(sys.modules, f"models.hf.{module}", raising=False)
    with pytest.raises(CheckpointError, match=re.escape("pip install -e '.[models]'")):
        open_(f"hf:{whole}")


@pytest.mark.slow
def test_our_own_models_never_import_transformers() -> None:
    code = (
        "import sys, torch; import service.engine.loop;"
        "from models.opening import resolve;"
        "m = resolve('tiny').model(1, torch.device('cpu'), torch.float32, torch.float32, 64, 64);"
        "resolve('tiny').tokenizer(m.config.vocabulary);"
        "sys.exit(' '.join({'transformers', 'huggingface_hub'} & set(sys.modules)) or 0)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("prefix", ["hf:", ""])
def test_the_engine_ends_with_2_and_the_sentence(
    folder: Path,
    tmp_path: Path,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pickle_instead(folder)
    monkeypatch.setattr(loop, "prepare_process", lambda *_: None)
    cache = str(tmp_path / "cache")
    model = f"{prefix}{folder}"
    chosen = EngineSettings(address="", model=model, modes=["eager"], batch_sizes=[1], cache_folder=cache)
    assert loop.run_engine(chosen, LocalInbox([])) == loop.EXIT_BAD_SETTINGS
    said = capsys.readouterr().err
    assert re.search(r"pytorch_model\.bin.*refused", said)
    assert "Traceback" not in said
