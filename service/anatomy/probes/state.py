"""Leaves the process as a probe found it: threads, modes of the thread, counters and compiled entries."""

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
    """Run the body in the plain state of a thread, then put back all that a probe may touch.

    Where it `resets`, code that the compiler has seen before is compiled anew within, and forgotten after:
    a broken graph leaves entries on the code of the model itself.
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
        gc.collect()  # a step and what it was compiled to hold each other in a circle


def _plain(device_type: str, recompile_limit: int) -> list[AbstractContextManager[Any]]:
    # Not entered in vain: within an outer autocast, even a disabled one, an inner one forgets no cast weight.
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
    """A probe provokes what the compiler warns of, and tells it in its own words."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
