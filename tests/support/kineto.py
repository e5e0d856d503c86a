"""Events as Kineto writes them, made by hand; instants and durations in microseconds."""

from __future__ import annotations

from service.step.trace import STEP_MARK, Event


def mark(begin: float, duration: float) -> Event:
    """The mark around a step, on the host."""
    return {"ph": "X", "cat": "user_annotation", "name": STEP_MARK, "ts": begin, "dur": duration, "args": {}}


def launch(begin: float, correlation: int, name: str = "cudaLaunchKernel") -> Event:
    """A launch call on the host."""
    args = {"correlation": correlation}
    return {"ph": "X", "cat": "cuda_runtime", "name": name, "ts": begin, "dur": 1.0, "args": args}


def kernel(
    begin: float, duration: float, correlation: int = 0, name: str = "a_kernel", stream: int = 7
) -> Event:
    """A kernel on the device."""
    args = {"correlation": correlation, "stream": stream}
    return {"ph": "X", "cat": "kernel", "name": name, "ts": begin, "dur": duration, "args": args}
