"""Restores the process after a probe: threads, thread-local modes, counters and compiled entries."""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
import torch._dynamo

from service.anatomy.probes.compiling import counters_kept
from service.measure.cases import Bench


@contextmanager
def as_found(bench: Bench, resets: bool, recompile_limit: int) -> Iterator[None]:
    """Run the body in a thread's default state, then restore all that a probe may change.

    With `resets` the compiler's entries are dropped before and after: a broken graph leaves entries on the
    model's own code.
    """
    threads = torch.get_num_threads()
    default_dtype = torch.get_default_dtype()
    try:
        with ExitStack() as stack:
            for context in _plain(bench.device.type, recompile_limit):
                stack.enter_context(context)
            _reset(bench, resets)
            stack.callback(_reset, bench, resets)
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(default_dtype)
        gc.collect()  # a step and its compiled code refer to each other
        if bench.device.type == "cuda":
            torch._C._host_emptyCache()  # torch keeps pinned memory whose tensor is gone


def _plain(device_type: str, recompile_limit: int) -> list[AbstractContextManager[Any]]:
    # Only where needed: within an outer autocast, even a disabled one, an inner one keeps its cast weights.
    autocast = torch.autocast(device_type, enabled=False) if torch.is_autocast_enabled(device_type) else None
    return [
        counters_kept(),
        _quiet(),
        torch._dynamo.config.patch(recompile_limit=recompile_limit),
        torch.compiler.set_stance("default"),
        autocast or nullcontext(),
        torch.inference_mode(False),
        torch.enable_grad(),
    ]


def _reset(bench: Bench, resets: bool) -> None:
    if resets:
        torch._dynamo.reset()
        bench.forget()


@contextmanager
def _quiet() -> Iterator[None]:
    """A probe provokes the compiler's warnings on purpose, and reports them itself."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
