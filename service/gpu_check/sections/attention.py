"""Which backend torch chooses for the attention of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from service.measure.cases import Bench, build_case
from service.protocol.messages import Phase

PHASES: tuple[Phase, ...] = ("prefill", "decode")


class _Seen(TorchFunctionMode):
    """Asks torch, for every attention call within, which backend it takes for these arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.backends: list[str] = []

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        arguments: Sequence[Any] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever torch's function returns
        del types
        if function is scaled_dot_product_attention:
            chosen = torch._fused_sdp_choice(*arguments, **(options or {}))
            self.backends.append(SDPBackend(chosen).name)
        return function(*arguments, **(options or {}))


def attention_backends(bench: Bench, bucket: int) -> dict[str, list[str]]:
    """By phase, the backends of the attention calls of one step at `bucket`, without repetition.

    Of plain modes: a compiled step is traced with the same choice, and its fused patterns may differ.
    """
    found: dict[str, list[str]] = {}
    for phase in PHASES:
        case = build_case("inference_mode", phase, bench.model, bench.buffers[bucket], bench.precision)
        with _Seen() as seen:
            case.call()
        found[phase] = list(dict.fromkeys(seen.backends))
    return found
