"""The variants of a call that the layer table times: what each runs, in which state of torch, in rounds."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from pathlib import Path
from time import perf_counter, perf_counter_ns
from timeit import Timer
from types import FunctionType, ModuleType
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from service.anatomy.common import GRAD_MODES, Report, StudyError, counted
from service.measure.compiled_library import BuildError, compiled_library
from service.measure.rounds import collector_off, in_rounds
from service.modes import GradMode
from service.step.device_time import MOST_HOLD_SECONDS, CudaQueue, issue_seconds, sample_queue
from service.study_names import OPERATOR_CALLS

_SOURCE = Path(__file__).with_name("loops.cpp")

Key = TypeVar("Key")
Times = Callable[[int], float]
"""Number of calls → seconds of all of them."""

LOOP_SECONDS = 3e-4
"""Target length of one loop: long beside reading a clock, short beside the scheduler's time slices."""

LOOPS = 3
"""Loops per sample, fewer where they take more than SAMPLE_SECONDS."""

SAMPLE_SECONDS = 3e-3

LONGEST_QUEUE = 64
"""Calls per loop on CUDA: more would fill the launch queue, and launches would block."""


@dataclass(frozen=True, slots=True)
class State:
    """Grad mode and autocast (to bfloat16) of a call."""

    grad: GradMode = "inference_mode"
    autocast: bool = False

    @contextmanager
    def entered(self, device: torch.device) -> Iterator[None]:
        autocast = torch.autocast(device.type, torch.bfloat16, enabled=self.autocast)
        with GRAD_MODES[self.grad](), autocast:
            yield


INFERENCE = State()


@dataclass(frozen=True, slots=True)
class Variant:
    """A function that makes a number of calls in a row and returns their seconds, and its state."""

    run: Times
    state: State = INFERENCE

    def seconds(self, device: torch.device, times: int) -> float:
        """Seconds per call: the minimum over short loops, because interference only adds.

        The first call in a state is not timed: autocast caches a weight's cast.
        """
        with self.state.entered(device):
            self.run(1)
            began = perf_counter()
            quickest = math.inf
            for _ in range(LOOPS):
                _wait(device)
                quickest = min(quickest, self.run(times))
                if perf_counter() - began > SAMPLE_SECONDS:
                    break
            return quickest / times


def python_variant(statement: str, names: Mapping[str, Any], state: State = INFERENCE) -> Variant:
    """`statement` in a Python loop, the loop's own time included."""
    return Variant(Timer(statement, globals=dict(names)).timeit, state)


_AFTER = """
def run(times):
    spent = 0
    for _ in repeat(None, times):
        before()
        began = clock()
        {statement}
        spent += clock() - began
    return spent / 1e9
"""


def python_variant_after(
    before: Callable[[], object], statement: str, names: Mapping[str, Any], state: State = INFERENCE
) -> Variant:
    """`statement`, each time after an untimed call of `before`, which sets the state of the caches.

    The seconds include reading the clock, which the statement "pass" measures alone.
    """
    known = {**names, "repeat": repeat, "clock": perf_counter_ns, "before": before}
    exec(_AFTER.format(statement=statement), known)
    return Variant(known["run"], state)


def calls_per_loop(variant: Variant, device: torch.device) -> int:
    """Number of calls of `variant` that take about LOOP_SECONDS, their untimed parts included."""
    times = 1
    spent = 0.0
    while times < 2**16:
        spent = min(_wall_seconds(variant, device, times) for _ in range(2))
        if spent > LOOP_SECONDS / 2:
            break
        times *= 2
    count = max(1, round(times * LOOP_SECONDS / spent))
    return min(count, LONGEST_QUEUE) if device.type == "cuda" else count


def _wall_seconds(variant: Variant, device: torch.device, times: int) -> float:
    with variant.state.entered(device):
        _wait(device)
        began = perf_counter()
        variant.run(times)
        return perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def time_variants(
    variants: Mapping[Key, Variant], device: torch.device, rounds: int, report: Report
) -> dict[Key, list[float]]:
    """Seconds per call of every variant, round by round, with garbage collection off."""
    gc.collect()
    with collector_off():
        times = {key: calls_per_loop(variant, device) for key, variant in variants.items()}
        seconds = {key: partial(variant.seconds, device, times[key]) for key, variant in variants.items()}
        return in_rounds(seconds, rounds, "layers", counted(report, rounds))


@dataclass(frozen=True, slots=True)
class Setup:
    """Device, dtype and state of the user's call, the C++ loops, and whether its tensors require grad."""

    device: torch.device
    dtype: torch.dtype
    state: State
    loops: Loops
    requires_grad: bool = True

    @property
    def taped(self) -> State:
        """The requested state without autocast; grad mode on where that is inference mode."""
        return State("enabled" if self.state.grad == "inference_mode" else self.state.grad)


def variants_of(setup: Setup, operation: Operation, size: int) -> dict[str, Variant]:
    """Every variant of `operation` on [size, size]."""
    state, loops = setup.state, setup.loops
    sized, smallest, empty = (
        operation.tensors(rows, width, setup.device, setup.dtype, setup.requires_grad)
        for rows, width in ((size, size), (1, 1), (0, 1))
    )
    empty = [tensor.detach() for tensor in empty]
    lowers = state.autocast and operation.lowered and setup.dtype == torch.float32
    computed = [tensor.detach().to(torch.bfloat16 if lowers else setup.dtype) for tensor in sized]
    computing, given = _computing(operation, computed)
    # Autocast caches leaves that require grad, under inference mode none; all others it casts in every call.
    cached = setup.requires_grad and state.grad != "inference_mode"
    cast = slice(1) if cached else slice(None)
    names = operation.names(smallest)
    before: Callable[[], object] = eval(f"lambda: {operation.statement}", operation.names(sized))

    def python(statement: str, names: dict[str, Any], state: State = INFERENCE) -> Variant:
        return python_variant_after(before, statement, names, state)

    def native(name: str, these: list[Tensor], state: State = INFERENCE) -> Variant:
        return Variant(lambda times: loops.after(name, these, operation.name, sized, times), state)

    variants = {
        "whole": python_variant(operation.statement, operation.names(sized), state),
        "compute": Variant(lambda times: loops.plain(computing, given, times)),
        "python clock": python("pass", {}),
        "python alone": python(operation.statement, names_without_c(names)),
        "from python": python(operation.statement, names),
        "taped": python(operation.statement, names, setup.taped),
        "native clock": native("nothing", []),
        "dispatcher": native("dispatcher", (smallest * 2)[:2]),
        "from native": native(operation.name, smallest),
        "autocast": native(operation.name, smallest, State(state.grad, autocast=True)),
        "no autocast": native(operation.name, smallest, State(state.grad)),
        "cast": native("cast", sized[cast]),
        "cast of one": native("cast", smallest[cast]),
        "compute nothing": native(*_computing(operation, empty)),
        "allocate": native("allocate", operation.allocates(computed[0])),
        "allocate nothing": native("allocate", operation.allocates(empty[0])),
    }
    if setup.device.type == "cuda":
        variants["graph"] = graph_variant(loops, computing, given)
    return variants


def _computing(operation: Operation, tensors: list[Tensor]) -> tuple[str, list[Tensor]]:
    """The loop and its arguments, with preallocated results where the operator has an out= form."""
    if operation.loop_out is None:
        return operation.name, tensors
    return operation.loop_out, [*tensors, *operation.allocates(tensors[0])]


no_operation = "".format
"""A C function that takes any arguments, packed in a tuple as torch's are, and ignores them."""


def _like(first: Tensor) -> list[Tensor]:
    return [torch.empty_like(first)]


def _normalised(first: Tensor) -> list[Tensor]:
    """With mean and reciprocal standard deviation, which layer norm always computes."""
    rows = (*first.shape[:1], 1)
    return _like(first) + [torch.empty(rows, device=first.device, dtype=torch.float32) for _ in range(2)]


ShapeName = Literal["rows", "square", "features"]
"""Of an argument: [rows, size], [size, size] or [size]."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operator, and the shapes of its tensors by their names in the statement, in the loop's order.

    `name` is also that of its C++ loop, `loop_out` that of its out= form, None where torch has none.
    `lowered`: autocast computes it in bfloat16. `allocates`: from the first argument without grad, tensors
    like those that a call allocates.
    """

    name: str
    arguments: Mapping[str, ShapeName] = field(default_factory=lambda: {"x": "rows"})
    loop_out: str | None = None
    lowered: bool = False
    allocates: Callable[[Tensor], list[Tensor]] = _like

    @property
    def statement(self) -> str:
        return OPERATOR_CALLS[self.name]

    def tensors(
        self, rows: int, size: int, device: torch.device, dtype: torch.dtype, requires_grad: bool = True
    ) -> list[Tensor]:
        """Its arguments as in a model: an activation with a grad_fn, then parameters."""
        shapes = {"rows": (rows, size), "square": (size, size), "features": (size,)}
        first, *others = (
            torch.randn(shapes[kind], device=device, dtype=dtype) for kind in self.arguments.values()
        )
        if not requires_grad:
            return [first, *others]
        return [first.requires_grad_().mul(1.0), *(other.requires_grad_() for other in others)]

    def names(self, tensors: list[Tensor]) -> dict[str, Any]:
        of_torch = {"torch": torch, "F": functional, "shape": [tensors[0].shape[-1]]}
        return of_torch | dict(zip(self.arguments, tensors, strict=True))


OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation("matmul", {"x": "rows", "weight": "square"}, "matmul_out", lowered=True),
        Operation("add", {"x": "rows", "y": "rows"}, "add_out"),
        Operation(
            "layer_norm", {"x": "rows", "weight": "features", "bias": "features"}, allocates=_normalised
        ),
        Operation("mul", {"x": "rows", "y": "rows"}, "mul_out"),
        Operation("exp", loop_out="exp_out"),
        Operation("relu"),
        Operation("sum", allocates=lambda first: [first.new_empty(())]),
        Operation("softmax"),
        Operation("transpose", allocates=lambda _: []),
    )
}
"""By the names of `OPERATOR_CALLS`."""


def names_without_c(names: Mapping[str, Any]) -> dict[str, Any]:
    """`names` with torch's C functions replaced by `no_operation`; torch's Python around them stays."""
    empty = ModuleType("torch")
    for operation in OPERATIONS:
        setattr(empty, operation, no_operation)
    empty.backends = torch.backends  # type: ignore[attr-defined]
    functions = ModuleType("torch.nn.functional")
    original = functional.layer_norm
    seen = {**functional.__dict__, "torch": empty}
    copied = FunctionType(original.__code__, seen, original.__name__, original.__defaults__)
    functions.layer_norm = copied  # type: ignore[attr-defined]
    return {**names, "torch": empty, "F": functions}


KERNELS_PER_GRAPH = 20

HOLD_MARGIN = 8.0
"""The device is held for so many times what issuing one replay takes: two events are issued as well."""


def graph_variant(loops: Loops, computing: str, given: list[Tensor]) -> Variant:
    """Device seconds per kernel, of a replayed graph of KERNELS_PER_GRAPH."""
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode():
        loops.plain(computing, given, 1)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            loops.plain(computing, given, KERNELS_PER_GRAPH)
    queue = CudaQueue()
    graph.replay()  # the first one uploads the graph
    issuing = issue_seconds(queue, graph.replay, perf_counter_ns)
    hold_seconds = min(HOLD_MARGIN * issuing, MOST_HOLD_SECONDS)

    def run(times: int) -> float:
        """Seconds of so many kernels; infinite where the device may have waited for the host."""
        found = sample_queue(queue, graph.replay, 1, hold_seconds)
        return found.seconds / KERNELS_PER_GRAPH * times if found.ahead else math.inf

    return Variant(run)


@dataclass(frozen=True, slots=True)
class Loops:
    """Seconds of `times` calls of an operator, by its name in `call_of` of loops.cpp.

    `plain` is (name, tensors, times). `after` is (name, tensors, before, others, times): each call follows an
    untimed call of `before`, and reading the clock, which `nothing` measures alone, is included.
    """

    plain: Callable[[str, list[Tensor], int], float]
    after: Callable[[str, list[Tensor], str, list[Tensor], int], float]


def load_loops(cache_folder: str, report: Report) -> Loops:
    """The loops, loaded once per process; built (some seconds) where `cache_folder` lacks their library.

    Raises StudyError without a C++ compiler.
    """
    registered: Any = torch.ops.launchbound_layers
    if not hasattr(registered, "loop"):
        torch.ops.load_library(_library(Path(cache_folder), report))
    return Loops(registered.loop.default, registered.loop_after.default)


def _library(folder: Path, report: Report) -> Path:
    from torch.utils.cpp_extension import include_paths, library_paths  # slow to import

    options = [f"-I{path}" for path in include_paths()]
    options += [*(f"-L{path}" for path in library_paths()), "-ltorch_cpu", "-lc10"]
    options.append(f'-DLAUNCHBOUND_TORCH="{torch.__version__}"')  # another torch gets a library of its own
    building = partial(report, "compiling layers in C++")
    try:
        return compiled_library(folder, "layers", _SOURCE.read_text(encoding="utf-8"), options, building)
    except BuildError as error:
        raise StudyError("unsupported_here", str(error)) from None
