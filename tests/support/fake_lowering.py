"""Steps of fake CUDA tensors through torch.compile and Inductor's lowering, without a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.device_interface import CudaInterface
from torch._guards import detect_fake_mode
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule

from models.config import Config
from models.transformer import Transformer

H100 = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3",
    major=9,
    minor=0,
    multi_processor_count=132,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    regs_per_multiprocessor=65536,
    shared_memory_per_block_optin=232448,
    warp_size=32,
)
"""What Inductor asks about a device before it lowers a reduction."""

CUDA, META = 1, 14
"""Of C++'s `DeviceType`."""


@contextmanager
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within, tensors are fake, and those on CUDA an H100's."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: H100)
    for interface in (CudaInterface, CudaInterface.Worker):
        monkeypatch.setattr(interface, "get_device_properties", staticmethod(lambda *_: H100))
    monkeypatch.setattr(CudaInterface, "get_compute_capability", staticmethod(lambda *_: 90))
    monkeypatch.setattr(CudaInterface.Worker, "current_device", staticmethod(lambda: 0))
    with _device_guard(), FakeTensorMode():
        yield


@contextmanager
def _device_guard() -> Iterator[None]:
    """Has C++ take the guard of `meta`, which does nothing, for that of CUDA where torch is built without:
    FakeTensorMode does the same in a build with CUDA only, and indexing a fake tensor asks for a guard.
    """
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * (META + 1)).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    before = guards[CUDA]
    guards[CUDA] = before or guards[META]
    try:
        yield
    finally:
        guards[CUDA] = before


def bfloat16_model(config: Config, max_batch: int) -> Transformer:
    """As it is served in bfloat16. Fake parameters cannot be cast in place."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            model = Transformer(config, max_batch)
    finally:
        torch.set_default_dtype(before)
    model.rotary = model.rotary.to(torch.bfloat16)
    return model.requires_grad_(False)


class Lowering:
    """A backend of `torch.compile` that lowers as Inductor does, and generates no code.

    `guards` has of each compilation the conditions on sizes, `operators` what it calls.
    """

    def __init__(self) -> None:
        self.guards: list[set[str]] = []
        self.operators: set[object] = set()

    def __call__(self, graph: GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Any]:
        traced = aot_autograd(fw_compiler=self._lower, decompositions=select_decomp_table())
        compiled: Callable[..., Any] = traced(graph, inputs)
        return compiled

    def _lower(self, graph: GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Any]:
        mode = detect_fake_mode(inputs)
        assert mode is not None
        assert mode.shape_env is not None
        lowering = GraphLowering(graph, example_inputs=inputs, shape_env=mode.shape_env, is_inference=True)
        with V.set_graph_handler(lowering), V.set_fake_mode(mode):
            lowering.run(*inputs)
        self.guards.append({str(guard.expr) for guard in mode.shape_env.guards})
        self.operators |= {node.target for node in graph.graph.nodes}
        return graph.forward
