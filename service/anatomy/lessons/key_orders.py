"""Which dispatch keys one real call passes, in which order, in each state of torch."""

from __future__ import annotations

import msgspec
import torch

from service.anatomy.layers.arms import State
from service.anatomy.operators.dispatch_keys import ThreadKeys, visited
from service.measure.cases import Bench

OPERATOR = "aten::mm"

STATES = {
    "eager": State("enabled"),
    "eager, autocast": State("enabled", autocast=True),
    "no_grad": State("no_grad"),
    "inference_mode": State("inference_mode"),
}


class KeyOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The `keys` whose kernels a call of `operator` runs in `state`, first to last."""

    state: str
    operator: str
    keys: list[str]


def key_orders(bench: Bench) -> list[KeyOrder]:
    """Of a product with a weight that requires grad, by the thread's state as it is then."""
    x = torch.ones(1, 8, device=bench.device)
    weight = torch.ones(8, 8, device=bench.device, requires_grad=True)
    found = []
    for name, state in STATES.items():
        with state.entered(bench.device):
            included = torch._C._dispatch_tls_local_include_set()
            thread = ThreadKeys(included, torch._C._dispatch_tls_local_exclude_set())
            found.append(KeyOrder(state=name, operator=OPERATOR, keys=visited(OPERATOR, [x, weight], thread)))
    return found
