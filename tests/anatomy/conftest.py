"""A bench that the tests of several studies share, and what a terminal shows of a finding."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from rich.console import Console
from torch.utils._python_dispatch import TorchDispatchMode

from service.anatomy import step_times
from service.anatomy.operators import study as operators
from service.anatomy.show import show
from service.measure.cases import Bench
from service.measure.cpu_sampler import CpuSampler, SamplerError
from tests.support.small_models import small_bench


@pytest.fixture(scope="module", autouse=True)
def few_samples() -> Iterator[None]:
    """Each step is sampled for a shorter time."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (step_times, operators):
            patch.setattr(module, "SAMPLED_SECONDS", 0.1)
        yield


@pytest.fixture(scope="module")
def bench(common_cache: Path) -> Iterator[Bench]:
    with small_bench(common_cache) as shared:
        yield shared


@pytest.fixture
def unsampled(monkeypatch: pytest.MonkeyPatch) -> str:
    """Why the thread cannot be sampled."""
    why = "the system gives this thread no timer"

    def refused(_: Bench) -> CpuSampler:
        raise SamplerError(why)

    monkeypatch.setattr(Bench, "sampler", property(refused))
    return why


def printed(finding: msgspec.Struct, width: int = 200) -> str:
    """What a terminal shows of `finding`."""
    text = StringIO()
    show(finding, Console(file=text, width=width))
    return text.getvalue()


class CallLister(TorchDispatchMode):
    """An independent dispatch mode that lists calls below autograd, without those that it causes itself.

    Composite operators get here under inference mode and are taken apart. Under a mode `reshape` calls
    `view` in place of `_reshape_alias`, and autograd's shallow copy of a saved output becomes a `detach` that
    no line of the model calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), COMPOSITE):
            with self:
                taken_apart = func.decompose(*args, **kwargs)
            if taken_apart is not NotImplemented:
                return taken_apart
        if func.name() != "aten::detach" or "detach" in _line_outside_of_torch():
            self.names.append(func.name())
        return func(*args, **kwargs)


COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


def _line_outside_of_torch() -> str:
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__", "").startswith("torch.") or frame.f_code.co_filename == __file__:
        assert frame.f_back is not None
        frame = frame.f_back
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno)
