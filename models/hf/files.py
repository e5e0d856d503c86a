"""A Hugging Face model's folder: its location and the validity of its files; without `transformers`."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from functools import cache
from pathlib import Path

import msgspec
from safetensors import SafetensorError, safe_open

from models.checkpoint import CONFIG_FILE, WEIGHTS_FILE, CheckpointError, refuse_pickles

PREFIX = "hf:"
INDEX_FILE = WEIGHTS_FILE + ".index.json"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_REVISION = re.compile(r"\w[\w./-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_PATTERNS = ["*.json", "*.safetensors"]

_OTHER_FOLDERS = {
    "adapter_config.json": "an adapter, not a model. Merge it into the model that it was trained on "
    "(peft's `merge_and_unload`, then `save_pretrained`), and give that folder",
    "snapshots": "the hub's cache of a model. Give one of the folders in its snapshots, or hf:ORG/NAME",
    "model_index.json": "a pipeline for images, not a language model. Give one that generates text",
    "*.gguf": "a model for llama.cpp. Give the folder of the original, in safetensors",
    "*.onnx": "a model for ONNX Runtime. Give the folder of the original, in safetensors",
}
"""What a folder without a configuration is, and what to do, by a name in it."""


@cache
def folder_of(name: str) -> Path:
    """The local folder of `hf:<folder>`, or of `hf:<hub id>@<revision>`. A hub id is fetched, or taken from
    the hub's local cache. Where it names no commit, the one that it stands for is said on standard error.
    Raises CheckpointError where there is neither such a folder nor a way to fetch it.
    """
    place = name.removeprefix(PREFIX)
    folder = Path(os.path.expanduser(place))
    if place and folder.is_dir():
        return folder.absolute()
    if folder.is_file():
        raise CheckpointError(f"{place} is a file: give the folder that holds the model")
    identity, at, revision = place.partition("@")
    if not _HUB_ID.fullmatch(identity) or (at and not _REVISION.fullmatch(revision)):
        raise CheckpointError(f"no folder {place}: give an existing one, or the id of a model on the hub")
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError as error:
        raise missing_library() from error
    try:
        found = Path(snapshot_download(identity, revision=revision or None, allow_patterns=_PATTERNS))
    except Exception as error:  # the library, the network and the hub each raise their own
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise CheckpointError(
            f"there is no folder {place}, and the hub gave no model of that id ({reason}): check the name, "
            "its revision, the network and your access, or give a folder that holds the model"
        ) from error
    commit = commit_of(found)
    if commit is not None and commit != revision:
        pinned = f"{PREFIX}{identity}@{commit}"
        print(
            f"launchbound: {name} may be another model tomorrow; what it is now is {pinned}", file=sys.stderr
        )
    return found


def commit_of(folder: Path) -> str | None:
    """The hub's commit that `folder` is a snapshot of; None for another folder."""
    is_snapshot = folder.parent.name == "snapshots" and _COMMIT.fullmatch(folder.name)
    return folder.name if is_snapshot else None


def missing_library() -> CheckpointError:
    remedy = "pip install -e '.[models]' in the folder of launchbound's source"
    return CheckpointError(f"models of Hugging Face need transformers: {remedy}")


def refuse_other_folder(folder: Path) -> None:
    """Raise CheckpointError where `folder` has no configuration of a model, but that of something else."""
    if (folder / CONFIG_FILE).is_file():
        return
    for pattern, what in _OTHER_FOLDERS.items():
        for found in folder.glob(pattern):
            raise CheckpointError(f"{folder} holds {found.name} and no {CONFIG_FILE}: it is {what}")


def read_json(file: Path) -> dict[str, object]:
    """The JSON object in `file`. Raises CheckpointError where there is none."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, object])
    except OSError as error:
        raise CheckpointError(
            f"cannot read {file} ({error.strerror}): give a folder as `save_pretrained` writes it"
        ) from error
    except msgspec.MsgspecError as error:
        raise CheckpointError(f"{file} is not a JSON object ({error}): fetch it again") from error


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of `folder`, each of which opens and has its full length.

    Raises CheckpointError, with the remedy, where there are none, where one is missing, corrupt or truncated.
    """
    files = _named_files(folder)
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise CheckpointError(
            f"{folder} lacks {', '.join(missing)}, which its {INDEX_FILE} names: fetch the missing files"
        )
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                opened.keys()
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file} is corrupt or truncated ({error}): fetch it again") from error
    return files


def _named_files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS_FILE).is_file():
        return [folder / WEIGHTS_FILE]
    if (folder / INDEX_FILE).is_file():
        shards = read_json(folder / INDEX_FILE).get("weight_map")
        names = sorted(set(map(str, shards.values()))) if isinstance(shards, dict) else []
        if not names or any(Path(name).name != name for name in names):
            raise CheckpointError(f"{folder / INDEX_FILE} names no weights of this folder: fetch it again")
        return [folder / name for name in names]
    refuse_pickles(folder, "load them where you trust them and write them with `save_pretrained`")
    raise CheckpointError(f"{folder} holds no {WEIGHTS_FILE}: give a folder as `save_pretrained` writes it")


def content_hash(folder: Path) -> str:
    digest = hashlib.sha256((folder / CONFIG_FILE).read_bytes())
    for file in weight_files(folder):
        with file.open("rb") as opened:
            hashlib.file_digest(opened, lambda: digest)
    return digest.hexdigest()[:12]
