"""Loads and saves weights: safetensors beside a config.json, never a pickle; and the models by name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from models.config import CONFIGS, Config
from models.transformer import Transformer

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
TINY_FOLDER = Path(__file__).parent / "tiny"
_SEED = 0
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")


class CheckpointError(ValueError):
    """A model that cannot be loaded; the message names the remedy."""


def stored_tensors(model: Transformer) -> dict[str, Tensor]:
    """The tensors of `model` that a checkpoint holds: a tied head once, as the embedding."""
    state = model.state_dict()
    if model.config.tied:
        del state["head.weight"]
    return state


def save(model: Transformer, folder: Path | str, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write `config.json` and `model.safetensors` into `folder`, each replaced atomically."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    stored = {
        name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in stored_tensors(model).items()
    }
    weights = folder / (WEIGHTS_FILE + ".part")
    config = folder / (CONFIG_FILE + ".part")
    weights.write_bytes(to_bytes(stored))
    config.write_bytes(msgspec.json.format(msgspec.json.encode(asdict(model.config))) + b"\n")
    weights.replace(folder / WEIGHTS_FILE)
    config.replace(folder / CONFIG_FILE)


def load_config(folder: Path | str) -> Config:
    """Read `config.json` of `folder`.

    Raises CheckpointError where it is missing, has another format, or describes a model that cannot be built.
    """
    file = Path(folder) / CONFIG_FILE
    try:
        content = file.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"cannot read {file} ({error.strerror}):"
            " give a folder written by `python -m models.training.train`"
        ) from error
    try:
        fields = msgspec.json.decode(content, type=dict[str, object])
        config = msgspec.convert(fields, Config)
    except msgspec.MsgspecError as error:
        remedy = f"serve it as hf:{folder}" if b'"model_type"' in content else "write the folder again"
        raise CheckpointError(f"{file} is not a configuration of launchbound ({error}): {remedy}") from error
    if unknown := fields.keys() - asdict(config).keys():
        raise CheckpointError(f"{file} has unknown fields ({', '.join(sorted(unknown))}): remove them")
    bad = [name for name, value in asdict(config).items() if name != "tied" and not value > 0]
    if bad:
        raise CheckpointError(f"{file}: {', '.join(bad)} must be greater than 0: write the folder again")
    return config


def load(folder: Path | str) -> tuple[Config, dict[str, Tensor]]:
    """Configuration and tensors of `folder`, on the CPU in the dtype they are stored in.

    Raises CheckpointError, with the remedy, for a missing folder, no safetensors, pickled weights, a corrupt
    or truncated file, and for tensors that are missing, unknown, misshapen or not of a float type.
    """
    folder = Path(folder)
    file = _weights_file(folder)
    config = load_config(folder)
    try:
        with safe_open(file, framework="pt") as opened:
            state = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} is corrupt or truncated ({error}): fetch or write it again") from error
    _check(file, config, state)
    return config, state


def refuse_not_finite(source: Path, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Raise CheckpointError where one of `weights`, by name, holds NaN or an infinite value."""
    wrong = [
        name
        for name, tensor in weights
        if tensor.numel() and not all(bound.isfinite() for bound in tensor.aminmax())
    ]
    if wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise CheckpointError(
            f"the weights in {source} hold NaN or infinite values ({wrong[0]}{more}), and would generate "
            "noise: fetch or write them again"
        )


def refuse_pickles(folder: Path, remedy: str) -> None:
    pickles = sorted(entry.name for entry in folder.iterdir() if entry.suffix in _PICKLES)
    if pickles:
        raise CheckpointError(
            f"{folder} holds pickled weights ({', '.join(pickles)}), which are refused because loading "
            f"a pickle can run code: {remedy}"
        )


def _weights_file(folder: Path) -> Path:
    if not folder.is_dir():
        raise CheckpointError(f"no folder {folder}: name one of {', '.join(CONFIGS)} or an existing folder")
    file = folder / WEIGHTS_FILE
    if file.is_file():
        return file
    refuse_pickles(folder, f"convert them to {WEIGHTS_FILE}")
    if (folder / f"{WEIGHTS_FILE}.index.json").is_file():
        raise CheckpointError(
            f"{folder} holds sharded weights, which launchbound does not write: serve it as hf:{folder}"
        )
    raise CheckpointError(
        f"{folder} holds no {WEIGHTS_FILE}: give a folder written by `python -m models.training.train`"
    )


def _check(file: Path, config: Config, state: dict[str, Tensor]) -> None:
    try:
        with torch.device("meta"):  # for the shapes alone
            expected = {name: tensor.shape for name, tensor in stored_tensors(Transformer(config, 1)).items()}
    except (RuntimeError, TypeError) as error:  # torch's, for what 64 bits cannot count
        message = f"{file.with_name(CONFIG_FILE)} has sizes that no tensor can have: write the folder again"
        raise CheckpointError(message) from error
    wrong = [f"{name} is missing" for name in expected.keys() - state.keys()]
    wrong += [f"{name} is unknown" for name in state.keys() - expected.keys()]
    for name in expected.keys() & state.keys():
        tensor = state[name]
        if tensor.shape != expected[name]:
            wrong.append(f"{name} has shape {list(tensor.shape)} instead of {list(expected[name])}")
        elif not tensor.is_floating_point():
            wrong.append(f"{name} is {tensor.dtype}, not a float type")
    if wrong:
        shown = "; ".join(sorted(wrong)[:3]) + (f"; and {len(wrong) - 3} more" if len(wrong) > 3 else "")
        raise CheckpointError(
            f"{file} does not match its {CONFIG_FILE}: {shown}. Use both files of one training"
        )
    refuse_not_finite(file, state.items())


class Checkpoint:
    """The model called `name`: `tiny` (trained, ships with the package), `small` or `base` (seeded random
    weights, for speed work), or a folder written by `save`.

    `folder` has its weights; None for the named sizes with seeded random ones. Raises CheckpointError for
    `hf:` names: see `models.opening`.
    """

    def __init__(self, name: str | Path) -> None:
        if str(name).startswith("hf:"):
            raise CheckpointError(
                f"{name} is not a launchbound model, which is required here: name one of {', '.join(CONFIGS)}"
            )
        self._name = str(name)
        named = {"tiny": TINY_FOLDER}.get(self._name)
        self.folder: Path | None = named or (None if self._name in CONFIGS else Path(name))

    @property
    def config(self) -> Config:
        """Its shape. Raises CheckpointError, see `load_config`."""
        if self.folder is None:
            return CONFIGS[self._name]
        _weights_file(self.folder)
        return load_config(self.folder)

    def build(
        self,
        max_batch: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        context: int | None = None,
    ) -> Transformer:
        """The model, ready to serve batches of up to `max_batch` rows, its weights in `dtype`.

        `context` is at most the model's own, which None stands for. Raises CheckpointError for a longer one,
        and see `load`.
        """
        config, state = (CONFIGS[self._name], None) if self.folder is None else load(self.folder)
        if context is not None and context > config.context:
            raise CheckpointError(
                f"a context of {context} is longer than the {config.context} of {self._name}: "
                "set LAUNCHBOUND_CONTEXT to less"
            )
        model = Transformer(replace(config, context=context or config.context), max_batch, seed=_SEED)
        if state is not None:
            if config.tied:
                state["head.weight"] = state["embedding.weight"]
            model.load_state_dict(state)
        return model.eval().to(device, dtype)

    @property
    def content_hash(self) -> str:
        """Twelve hex digits that identify it: sha256 over configuration and weights, or over the seed."""
        if self.folder is None:
            seeded = msgspec.json.encode({"config": asdict(CONFIGS[self._name]), "seed": _SEED})
            return hashlib.sha256(seeded).hexdigest()[:12]
        digest = hashlib.sha256(msgspec.json.encode(asdict(load_config(self.folder))))
        with _weights_file(self.folder).open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
        return digest.hexdigest()[:12]
