"""The shape of a decoder, and the named sizes."""

from __future__ import annotations

from dataclasses import dataclass


class ConfigError(ValueError):
    """A configuration that cannot be built; the message names the remedy."""


@dataclass(frozen=True, slots=True)
class Config:
    """Shape of a Llama-style decoder. Sizes are counts of features or tokens. `context` is the length of the
    static KV cache: no sequence (prompt and completion together) is longer.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    hidden: int
    vocabulary: int
    context: int = 512
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-5
    tied: bool = True

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ConfigError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if self.head_width % 2:
            raise ConfigError(f"head_width ({self.head_width}) must be even: rotary positions pair features")


CONFIGS: dict[str, Config] = {
    "tiny": Config(layers=6, width=192, heads=6, kv_heads=2, head_width=32, hidden=512, vocabulary=4096),
    "small": Config(layers=12, width=768, heads=12, kv_heads=4, head_width=64, hidden=2432, vocabulary=49152),
    "base": Config(layers=16, width=2048, heads=32, kv_heads=8, head_width=64, hidden=8192, vocabulary=4096),
}
"""Named sizes: about 3 million, 124 million (as GPT-2 small) and 1 billion parameters."""
