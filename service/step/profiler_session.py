"""Sessions of torch's profiler: what runs in them beside the steps, so that their kernels can be found.

On CUDA every session contains work on the device that is no step's. Reported of Kineto and CUPTI: the first
kernels of a session are dropped, because the device's clock still lies behind (pytorch issue 192021), and a
first session without device work left later ones without kernels. And the plain launch between two steps is
what separates them in a trace whose correlation ids are wrong: see `kernel_matching`.
"""

from __future__ import annotations

import warnings
from time import perf_counter
from typing import Literal

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from service.step.trace import LEAD_MARK

LEAD_SECONDS = 0.005
"""Of discarded work before the first mark of a session. How long is enough is not known: steps that lose
kernels nevertheless have unknown ones."""

_sessions_of: set[Literal["cpu", "cuda"]] = set()
"""What sessions of this process were of."""


def profiler_attached() -> bool:
    """Whether this process has had a session of a CUDA device, whose library (CUPTI) stays attached to it."""
    return "cuda" in _sessions_of


class Separator:
    """A plain launch of a small kernel, outside of every mark; does nothing on a CPU.

    With `copies` it is a copy on the device, which a sum over kernels leaves out. Its memory is allocated
    here, so that a session contains nothing else of it.
    """

    def __init__(self, device: torch.device, copies: bool = False) -> None:
        self._value = torch.zeros(1, device=device) if device.type == "cuda" else None
        self._copied = torch.ones(1, device=device) if copies else None

    def launch(self) -> None:
        """Launch it once."""
        if self._value is None:
            return
        if self._copied is None:
            self._value.add_(1)
        else:
            self._value.copy_(self._copied)

    def lead(self) -> None:
        """Launch it for LEAD_SECONDS, then wait for the device: the begin of a session, before any mark."""
        if self._value is None:
            return
        with record_function(LEAD_MARK):
            began = perf_counter()  # behind the mark: a session's first takes milliseconds
            while perf_counter() - began < LEAD_SECONDS:
                self.launch()
                self.wait()

    def wait(self) -> None:
        """Wait for the device."""
        if self._value is not None:
            torch.cuda.synchronize()


def new_session(device: torch.device, memory: bool = False) -> profile:
    """A session that has not begun, of the host and, on CUDA, the device; with `memory` also of allocations.

    Without `acc_events`, with which stopping it parses every event in Python: seconds for a request's trace,
    of which we read only what is exported.
    """
    _sessions_of.add("cuda" if device.type == "cuda" else "cpu")
    # torch before 2.13 warns so of every session, also of one without cycles (pytorch issue 180348).
    warnings.filterwarnings("ignore", "Warning: Profiler clears events at the end of each cycle", UserWarning)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    return profile(activities=activities, profile_memory=memory)
