"""Loads a Hugging Face folder as a `Served` model, or raises with the reason in one sentence."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch._C import DispatchKey
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers import Cache as LibraryCache
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from models.checkpoint import CONFIG_FILE, CheckpointError, refuse_not_finite
from models.hf.files import read_json, refuse_other_folder, weight_files
from models.naming import is_encoder
from models.served import Cache, Served

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
    refuse_other_folder(folder)
    config = load_config(folder)
    weight_files(folder)
    chosen = choose_context(config, folder, context, chunk)
    inner = _load_weights(folder, config, dtype)
    refuse_not_finite(folder, inner.named_parameters())
    return _checked(folder, inner.to(device), rows, chosen, context is None, chunk)


def _checked(
    folder: Path, inner: PreTrainedModel, rows: int, context: int, may_shorten: bool, chunk: int
) -> HuggingFaceModel:
    """`inner` with the longest context, up to `context`, in which its steps are what it computes itself."""
    reason: Exception | None = None
    for length in _contexts(inner.config, context, chunk):
        try:
            model = HuggingFaceModel(inner, rows, length).eval()
            check(model)
        except Exception as error:  # noqa: BLE001 - any architecture is tried, and may break anywhere
            reason = reason or error
            continue
        if reason is not None:
            said = f"{folder} cannot be served with a context of {context} ({in_one_line(reason)})"
            if not may_shorten:
                raise CheckpointError(f"{said}: set LAUNCHBOUND_CONTEXT to at most {length}") from reason
            print(f"launchbound engine: {said}: its context is {length}", file=sys.stderr)
        return model
    assert reason is not None
    raise CheckpointError(
        f"{folder}: {type(inner).__name__} cannot be stepped with a static cache of keys and values "
        f"({in_one_line(reason)}): serve a model of another architecture, such as Llama, GPT-2 or Qwen"
    ) from reason


def _contexts(config: PreTrainedConfig, context: int, chunk: int) -> list[int]:
    """`context`, then shorter ones, the longest first: to where something changes, and halves."""
    halves = [END_CHECKED >> power for power in range(END_CHECKED.bit_length()) if END_CHECKED >> power >= 16]
    shorter = {n - n % chunk or n for n in [*regimes(config), *halves] if n < context}
    return [context, *sorted(shorter - {context}, reverse=True)]


def silence_transformers() -> None:
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
            f"{folder / CONFIG_FILE} is no configuration of '{kind}' ({in_one_line(error)}): "
            "correct that field, or fetch it again"
        ) from error
    _causal(folder, config)
    return config


def _causal(folder: Path, config: PreTrainedConfig) -> None:
    causal = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and not config.is_encoder_decoder
    saved = config.architectures or []
    if not causal or (saved and not any(_is_causal_class(name, config) for name in saved)):
        remedy = "give one that generates text, such as LlamaForCausalLM"
        if is_encoder(f"hf:{folder}"):  # its id did not tell, before it was fetched
            remedy = f"an encoder is measured by its folder, `launchbound run hf:{folder}`"
        kind = ", ".join(saved) or config.model_type
        raise CheckpointError(f"{folder} holds {kind}, which is no causal language model: {remedy}")
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
            f"the weights of {folder} do not fit its {CONFIG_FILE} ({in_one_line(error)}): fetch both again"
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


def in_one_line(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:300]


LENGTHS = (9, 4)
"""Tokens of the two rows; the last two of each are decoded one by one."""

PIECE = 64
"""Tokens of one step: all of a long window at once would take scores as large as their square."""

BEYOND = 5
"""So many tokens more than a sliding window, or than a switch of its positions, are stepped."""

SHORTEST_REACH = 64
"""Positions that attention reads at least, as in serving."""

END_CHECKED = 512
"""A longer context is not stepped to its end, only beyond what the configuration names."""

ALLOWED = {torch.float32: 1e-3}
ALLOWED_BELOW = 0.1
"""Relative to the logits' norm: far above rounding in narrower types, far below a wrong mask's effect."""


def regimes(config: PreTrainedConfig) -> dict[int, str]:
    """By length: what `config` says ends behind so many tokens."""
    named = {window_of(config): "its window", getattr(config, "window_size", None): "its window"}
    rotary = getattr(config, "rope_parameters", None) or {}
    for part in (rotary, *(part for part in rotary.values() if isinstance(part, dict))):
        named[part.get("original_max_position_embeddings")] = "the original length of its rotary positions"
    found = {length: what for length, what in named.items() if isinstance(length, int)}
    return dict(sorted(found.items()))


@torch.no_grad()
def check(model: HuggingFaceModel) -> None:
    """Step ragged batches by chunk and by token, beyond each of the configuration's regimes too.

    Raises ValueError where the logits differ.
    """
    context = model.config.context
    short = (min(LENGTHS[0], context), LENGTHS[1])
    _compare(model, short, min(SHORTEST_REACH, context), "its logits by steps")
    for length, what in regimes(model.inner.config).items():
        if length < context:
            said = f"its logits by steps beyond {what} of {length} tokens"
            beyond = min(max(length, LENGTHS[0]) + BEYOND, context)
            _compare(model, (beyond, max(length, LENGTHS[1])), context, said)
    if max(LENGTHS) < context <= END_CHECKED:
        _compare(model, (context,), context, f"its logits by steps at the end of {context} tokens")


def _compare(model: HuggingFaceModel, lengths: tuple[int, ...], reach: int, what: str) -> None:
    """Attention reads `reach` positions, as in serving, where no step reads more than the context."""
    device = model.columns.device
    rows = min(len(lengths), len(model.rows))
    ends = torch.tensor(lengths[:rows], device=device)
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(model.config.vocabulary, (rows, max(lengths)), generator=generator).to(device)
    dtype = next(model.parameters()).dtype
    cache = tuple((keys[:, :reach], values[:, :reach]) for keys, values in model.new_cache(rows, dtype))
    zeros = torch.zeros_like(ends)
    stepped = [_prefilled(model, text[:, : max(lengths) - 2], ends - 3, cache)]
    for place in (ends - 2, ends - 1):
        stepped.append(model(text.gather(1, place.unsqueeze(1)), place, zeros, cache)[0])
    found = torch.stack(stepped, dim=1).float()
    expected = torch.stack([_own(model, row[:length]) for row, length in zip(text, lengths, strict=False)])
    allowed = ALLOWED.get(dtype, ALLOWED_BELOW)
    difference = float((found - expected).norm() / expected.norm())
    if not difference <= allowed:
        raise ValueError(f"{what} differ from its own by {difference:.1%} of their norm")


def _prefilled(model: HuggingFaceModel, text: Tensor, wanted: Tensor, cache: Cache) -> Tensor:
    """The logits at the places `wanted` [rows], with `text` stepped in pieces, as in serving."""
    logits = torch.zeros(len(wanted), model.config.vocabulary, device=text.device)
    for begin in range(0, text.shape[1], PIECE):
        piece = text[:, begin : begin + PIECE]
        last = (wanted - begin).clamp(0, piece.shape[1] - 1)
        found = model(piece, torch.full_like(wanted, begin), last, cache)[0].float()
        inside = (wanted >= begin) & (wanted < begin + PIECE)
        logits = torch.where(inside.unsqueeze(1), found, logits)
    return logits


def _own(model: HuggingFaceModel, tokens: Tensor) -> Tensor:
    """The last three logits [3, vocabulary] of `tokens` [length] in one call, without any cache."""
    logits: Tensor = model.inner(input_ids=tokens.unsqueeze(0), use_cache=False, logits_to_keep=3).logits
    return logits[0].float()


# The model with the step of `Served`: per-row positions, a static cache, one graph

Widths = tuple[tuple[int, int, int], ...]
"""Per layer: heads of the cache, features of a key, features of a value."""

_TAKE = torch.ops.aten.take_along_dim.default


def _take_along_dim(tensor: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """`torch.take_along_dim` as compilers trace it here.

    The library picks the logits to keep with it. torch's own reads sizes as numbers, which fixes those that
    are marked as dynamic: no step of several prefill lengths would compile.
    """
    if dim is None:
        tensor, indices, dim = tensor.flatten(), indices.flatten(), 0
    own, wanted = list(tensor.shape), list(indices.shape)
    own[dim] = wanted[dim] = 1
    common = torch.broadcast_shapes(own, wanted)

    def spread(part: Tensor) -> Tensor:
        sizes = list(common)
        sizes[dim] = part.shape[dim]
        return part.expand(sizes)

    return spread(tensor).gather(dim, spread(indices))


if DispatchKey.CompositeImplicitAutograd not in _TAKE.py_kernels:
    _TAKE.py_impl(DispatchKey.CompositeImplicitAutograd)(_take_along_dim)


@dataclass(frozen=True, slots=True)
class Shape:
    layers: int
    width: int
    vocabulary: int
    context: int


class StepCache(LibraryCache):
    """Writes the keys and values of one step to `rows` and `positions` of the static cache."""

    def __init__(self, cache: Cache, rows: Tensor, positions: Tensor) -> None:
        super().__init__(layers=[])
        self._cache = cache
        self._where = rows, positions

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Write [batch, heads, tokens, width]; returns all of the layer's cache, in that order too."""
        keys, values = self._cache[layer_idx]
        # Detached: with grad mode on, a tape then lives one step and does not reach through the cache.
        keys.index_put_(self._where, key_states.detach().transpose(1, 2).to(keys.dtype))
        values.index_put_(self._where, value_states.detach().transpose(1, 2).to(values.dtype))
        return keys.transpose(1, 2), values.transpose(1, 2)


class ProbeCache(LibraryCache):
    """Records the shapes of each layer's keys and values, and stores nothing."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.widths: dict[int, tuple[int, int, int]] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        self.widths[layer_idx] = key_states.shape[1], key_states.shape[3], value_states.shape[3]
        return key_states, value_states


class HuggingFaceModel(Served):
    """`inner` with the step of `Served`, for batches of up to `rows` rows.

    Raises ValueError where `inner` does not keep keys and values for each of its layers.
    """

    columns: Tensor
    rows: Tensor

    def __init__(self, inner: PreTrainedModel, rows: int, context: int) -> None:
        super().__init__()
        self.inner: Any = inner
        parameter = next(inner.parameters())
        device = parameter.device
        self.register_buffer("columns", torch.arange(context + 1, device=device), persistent=False)
        self.register_buffer("rows", torch.arange(rows, device=device).unsqueeze(1), persistent=False)
        self._window = window_of(inner.config)
        kinds = set(getattr(inner.config, "layer_types", None) or ())
        # Where layers differ, the library takes a mask for each kind by name, else one for all of them.
        self._kinds = sorted(kinds & {FULL, SLIDING}) if SLIDING in kinds else []
        self._widths, vocabulary = self._probe()
        self.config = Shape(len(self._widths), inner.config.hidden_size, vocabulary, context)

    @property
    def architecture(self) -> str:
        return type(self.inner).__name__

    @torch.no_grad()
    def _probe(self) -> tuple[Widths, int]:
        """Run one token: the widths of each layer's cache, and the number of logits."""
        cache = ProbeCache()
        zero = self.columns[:1].unsqueeze(0)
        out = self.inner(
            input_ids=zero,
            attention_mask=self._masks(zero, self.columns[:1], self.inner.dtype),
            position_ids=zero,
            past_key_values=cache,
            use_cache=True,
        )
        found = cache.widths
        if not found or sorted(found) != list(range(len(found))):
            raise ValueError("its layers do not each keep their own keys and values")
        return tuple(found[layer] for layer in range(len(found))), out.logits.shape[-1]

    def forward(self, tokens: Tensor, positions: Tensor, last: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        batch, count = tokens.shape
        token_positions = positions.unsqueeze(1) + self.columns[:count]
        attended = self.columns[: cache[0][0].shape[1]]
        out = self.inner(
            input_ids=tokens,
            attention_mask=self._masks(token_positions, attended, cache[0][0].dtype),
            position_ids=token_positions,
            use_cache=True,
            past_key_values=StepCache(cache, self.rows[:batch], token_positions),
            logits_to_keep=last.unsqueeze(1) if count > 1 else 0,
        )
        logits = out.logits[:, 0]
        return logits, logits.argmax(dim=-1)

    def _masks(self, positions: Tensor, columns: Tensor, dtype: torch.dtype) -> Any:  # noqa: ANN401 - the library's
        """What is added to the scores of `columns`, for each token at `positions` [batch, tokens].

        [batch, 1, tokens, columns], 0 where it attends: all before a token, or those in a window behind it.
        Four dimensions, so that the library uses it unchanged; additive, because torch turns a boolean mask
        into this in every layer.
        """
        if not self._kinds:
            return _mask(positions, columns, dtype, self._window)
        return {
            kind: _mask(positions, columns, dtype, self._window if kind == SLIDING else None)
            for kind in self._kinds
        }

    def new_cache(self, rows: int, dtype: torch.dtype) -> Cache:
        positions = self.config.context + 1
        device = self.columns.device

        def zeros(heads: int, width: int) -> Tensor:
            return torch.zeros((rows, positions, heads, width), device=device, dtype=dtype)

        return tuple((zeros(heads, key), zeros(heads, value)) for heads, key, value in self._widths)


FULL, SLIDING = "full_attention", "sliding_attention"
"""Names in a configuration's `layer_types`."""


def window_of(config: PreTrainedConfig) -> int | None:
    """Tokens that a sliding layer attends to, itself included; None where no layer of the model slides."""
    window: int | None = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    return window if window and (kinds is None or SLIDING in kinds) else None


def _mask(positions: Tensor, columns: Tensor, dtype: torch.dtype, window: int | None) -> Tensor:
    own = positions.unsqueeze(2)
    masked = columns > own
    if window is not None:
        masked = masked | (columns <= own - window)
    return masked.unsqueeze(1).to(dtype) * torch.finfo(dtype).min
