"""What the lessons are drawn from: findings of studies and probes, kept as one JSON file."""

from __future__ import annotations

from pathlib import Path

import msgspec

from service.anatomy.layers.study import LayersFinding
from service.anatomy.lessons.key_orders import KeyOrder
from service.anatomy.lessons.layer_norm import LayerNormKernels
from service.anatomy.lessons.strides import StridedRead
from service.anatomy.median_seconds import MedianSeconds
from service.anatomy.operators.finding import DispatchShare
from service.anatomy.operators.registry import Registry
from service.anatomy.prepared_bench import Machine
from service.anatomy.probes.study import ProbeFinding
from service.statistics.intervals import Interval

FILE = "findings.json"

FORMAT_VERSION = 2


class StepCounts(msgspec.Struct, frozen=True, kw_only=True):
    """One decode step of a mode at batch 1, from the study of operators.

    `calls` below autograd, of which `views` compute nothing and `autograd` pass a key of autograd. `kernels`
    of the compiled code: generated ones and calls of a library's; None where nothing is compiled.
    """

    step: MedianSeconds
    dispatch: DispatchShare | None
    calls: int
    views: int
    autograd: int
    kernels: int | None
    launches: int | None


class ModePoint(msgspec.Struct, frozen=True, kw_only=True):
    """A decode step of `mode` at batch 1, from the study of the budget, in seconds.

    `speedup` is against the mode that it was timed with, by round. `source`: `sampled` on a CPU, else
    `measured`.
    """

    mode: str
    step: Interval
    kernel_seconds: Interval
    source: str
    speedup: Interval


class SavedBytes(msgspec.Struct, frozen=True, kw_only=True):
    """What eager's tape alone keeps alive in a prefill chunk of `batch_size`, beside the parameters."""

    batch_size: int
    saved_bytes: int
    parameter_bytes: int


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was measured. `speedups` has the points by the mode that they are compared with."""

    format_version: int = FORMAT_VERSION
    machine: Machine
    measured: str
    rounds: int
    model_layers: int
    layers: LayersFinding
    steps: dict[str, StepCounts]
    speedups: dict[str, list[ModePoint]]
    saved: list[SavedBytes]
    layer_norm: LayerNormKernels
    strides: StridedRead
    keys: list[KeyOrder]
    registry: Registry
    probes: dict[str, ProbeFinding]


def write(findings: Findings, folder: Path) -> None:
    """Keep `findings` in `folder`, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    text = msgspec.json.format(msgspec.json.encode(findings), indent=1)
    (folder / FILE).write_bytes(text + b"\n")


def read(folder: Path) -> Findings:
    """The findings in `folder`. Raises ValueError, with the remedy, for a file of another format."""
    try:
        found = msgspec.json.decode((folder / FILE).read_bytes(), type=Findings)
        if found.format_version != FORMAT_VERSION:
            raise msgspec.DecodeError(f"it is of format {found.format_version}, this reads {FORMAT_VERSION}")
    except msgspec.DecodeError as error:
        message = f"{folder.name}/{FILE} cannot be read ({error}): measure again"
        raise ValueError(f"{message} with `launchbound lessons`") from error
    return found
