"""Which backend torch chooses for the attention of a step."""

from __future__ import annotations

from service.measure.cases import Bench, build_case
from service.step.attention import PHASES, ReferenceAttention


def attention_backends(bench: Bench, bucket: int) -> dict[str, list[str]]:
    """By phase, the backends that the attention calls of one step at `bucket` would take, by name.

    Of plain modes: a compiled step is traced with the same choice, and its fused patterns may differ.
    """
    found: dict[str, list[str]] = {}
    for phase in PHASES:
        case = build_case("inference_mode", phase, bench.model, bench.buffers[bucket], bench.precision)
        with ReferenceAttention() as seen:
            case.call()
        found[phase] = sorted(seen.chosen)
    return found
