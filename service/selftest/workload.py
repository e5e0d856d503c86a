"""The one small request that the checks send, over HTTP and in process alike."""

from __future__ import annotations

PROMPT = "def mean(values):\n    total = 0\n    for value in values:\n"
NEW_TOKENS = 32
