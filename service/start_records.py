"""What an engine says of its own start."""

from __future__ import annotations

from typing import Literal

import msgspec

StartPhase = Literal[
    "import", "weights", "dynamo", "aot_autograd", "inductor", "compiler", "second_compiler", "calls",
    "parity", "measuring", "rest",
]  # fmt: skip
"""Parts of an engine's start; `compiler` is the C++ compiler, or Triton's."""


class StartTimes(msgspec.Struct, frozen=True, kw_only=True):
    """An engine's start, from the beginning of its process until it was ready: `seconds` sum to all of it.

    They are those of its main thread, by StartPhase. `compiler_runs` counts the C++ compiler in all threads.
    `beside_seconds`: what a second process compiled meanwhile, of which the engine waited for
    `second_compiler`; they overlap with the other phases, and are in no sum.
    """

    began_ns: int
    ready_ns: int
    seconds: dict[str, float]
    compiler_runs: int
    beside_seconds: float


EXPORT = "launchbound.export"
"""The name of `torch.export` among torch's events of compilation, where it has none of its own."""
