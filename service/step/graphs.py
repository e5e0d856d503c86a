"""Steps captured by hand as CUDA graphs; and the ban on compiling once all is warm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo import eval_frame
from torch.utils._pytree import tree_leaves

from service.step.device import is_device_lost, is_out_of_memory, root_cause

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE


def forbid_recompilation() -> None:
    """From now on a call whose guards all fail raises RuntimeError instead of compiling; process-wide."""
    torch.compiler.set_stance("fail_on_recompile")


def is_recompile_error(error: BaseException) -> bool:
    """Whether the stance `fail_on_recompile` raised `error`: a RuntimeError, known by where it was raised."""
    traceback = error.__traceback__
    if type(error) is not RuntimeError or traceback is None:
        return False
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback.tb_frame.f_globals.get("__name__") == eval_frame.__name__


Run = Callable[..., Any]
Replay = Callable[[], object]

WARM_UP_CALLS = 2
"""Before a capture: what is set up at a first call (handles, workspaces, modules) cannot be captured."""


class CaptureError(RuntimeError):
    """A step that cannot be captured; the message says why, and what to serve instead."""


def captured_step(run: Run, record: Callable[[Callable[[], Any]], tuple[Replay, Any]]) -> Run:
    """`run` as graphs: its first call with a set of arguments records one, later ones replay that. A graph
    reads and writes the addresses that it was recorded with, so arguments are told apart by identity, and
    kept. Results are static too: copy what is to outlast the next replay of any graph. `record` returns what
    replays the call that it is given, and the results that this writes. Raises CaptureError, also for new
    arguments once recompilation is forbidden.
    """
    graphs: dict[tuple[int, ...], tuple[Replay, Any, tuple[Any, ...]]] = {}

    def captured(*arguments: Any) -> Any:  # noqa: ANN401 - those of any step
        key = tuple(map(id, arguments))
        known = graphs.get(key)
        if known is None:
            if eval_frame._stance.stance == "fail_on_recompile":
                raise CaptureError(
                    f"no graph was captured for {shapes_of(arguments)} at warm-up: "
                    "call the step with the buffers that it was warmed with"
                )
            known = graphs[key] = (*record(lambda: run(*arguments)), arguments)
        known[0]()
        return known[1]

    return captured


def shapes_of(arguments: tuple[Any, ...]) -> str:
    """The shapes of a step's first tensors."""
    shapes = [tuple(leaf.shape) for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
    return f"tensors of {', '.join(map(str, shapes[:4]))}{', …' if len(shapes) > 4 else ''}"


def record_cuda_graph(run: Callable[[], Any]) -> tuple[Replay, Any]:
    """Capture a call of `run` on the current device, in memory that all captured steps share. Raises
    CaptureError where an operator cannot be captured: one that waits for the device, say.
    """
    stream = _stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), _uncached_casts():
        for _ in range(WARM_UP_CALLS):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    before = torch.cuda.current_stream()
    try:
        with (
            _uncached_casts(),
            _own_workspace(),
            torch.cuda.graph(graph, pool=_pool(), stream=stream, capture_error_mode="thread_local"),
        ):
            result = run()
    except RuntimeError as error:
        torch.cuda.set_stream(before)  # a capture that cannot be ended leaves its own stream current
        # Before torch 2.12 a capture that failed leaves its pool in use.
        _pool.cache_clear()
        if is_device_lost(error) or is_out_of_memory(error):
            raise
        raise CaptureError(
            f"this model's step cannot be captured as a CUDA graph: {root_cause(error)}; "
            "what remains: inference_mode, reduce-overhead"
        ) from error
    return graph.replay, result


@contextmanager
def counted_replays() -> Iterator[list[torch.cuda.CUDAGraph]]:
    """Within: lists the graph of every replay that torch's own code makes, such as Inductor's graph trees."""
    seen: list[torch.cuda.CUDAGraph] = []
    replay = torch.cuda.CUDAGraph.replay

    def counting(graph: torch.cuda.CUDAGraph) -> None:
        seen.append(graph)
        replay(graph)

    torch.cuda.CUDAGraph.replay = counting  # type: ignore[method-assign, assignment]
    try:
        yield seen
    finally:
        torch.cuda.CUDAGraph.replay = replay  # type: ignore[method-assign]


@cache
def _stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()


@cache
def _pool() -> _POOL_HANDLE:
    return torch.cuda.graph_pool_handle()


@contextmanager
def _own_workspace() -> Iterator[None]:
    """Within: cuBLAS has no workspace yet, so that a graph captured here takes one from its own pool. torch's
    own, one per stream, is freed when another graph ends: graphs would write into memory of others.
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


@contextmanager
def _uncached_casts() -> Iterator[None]:
    """Within: autocast casts anew. A cached cast is freed when autocast ends, and a graph would read it."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)
