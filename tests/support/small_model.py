"""A decoder of our own that is built and run in milliseconds."""

from __future__ import annotations

from models.config import Config

SMALL = Config(layers=6, width=16, heads=2, kv_heads=1, head_width=8, hidden=32, vocabulary=64, context=128)
