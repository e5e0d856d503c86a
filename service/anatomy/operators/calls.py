"""The calls into the dispatcher of a step: their nesting and times, keys, views, lines and device work."""

from __future__ import annotations

import linecache
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch._C._profiler import RecordScope, _EventType, _ExperimentalConfig
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch._ops import OpOverload
from torch.autograd.profiler import profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from models.served import Served
from service.anatomy.common import GRAD_MODES, autocast_of
from service.measure.cases import AnyBench, AnyCase
from service.modes import Mode
from service.statistics.intervals import Interval, median_interval
from service.step.loaded_model import Precision
from service.step.profiling import INTERVAL_STEPS, attach_profiler, profile_steps
from service.step.trace import STEP_MARK, ProfiledStep, typical_step


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor argument of an operator: sizes and strides in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One call of an operator below autograd, in its place in the step.

    `within` names the enclosing composite operators, outermost first. `inner` counts the calls of its kernel,
    `copied` has the destination of every copy among them, and `cast` of those from another dtype. `begin_ns`
    is on the profiler's clock.
    """

    name: str
    overload: str
    within: tuple[str, ...]
    begin_ns: int
    seconds: float
    inner: int
    operands: tuple[Operand, ...]
    copied: tuple[Operand, ...]
    cast: tuple[Operand, ...]

    @property
    def schema_name(self) -> str:
        """The dispatcher's name: `aten::add.Tensor`, or `aten::mm` for the default overload."""
        return f"{self.name}.{self.overload}" if self.overload else self.name


@dataclass(frozen=True, slots=True)
class StepCalls:
    calls: tuple[OperatorCall, ...]
    begin_ns: int
    seconds: float
    events: int


def record(case: AnyCase, steps: int, operands: bool = False) -> list[StepCalls]:
    """Run `steps` steps under the profiler. `operands` records shapes too, which slows it."""
    attach_profiler(case.device)
    case.call()
    marks, overloads = profiled_events(case.call, STEP_MARK, steps, operands)
    return [
        StepCalls(
            calls=tuple(_calls(mark.children, overloads, ())),
            begin_ns=mark.start_time_ns,
            seconds=mark.duration_time_ns / 1e9,
            events=sum(1 for _ in _below(mark)),
        )
        for mark in marks
    ]


def profiled_events(
    call: Callable[[], object], mark: str, times: int = 1, operands: bool = False
) -> tuple[list[Any], dict[int, str]]:
    """Of each call, the profiler's event of `mark` around it; and operators' overloads by correlation id."""
    # Not torch.profiler.profile: in a single cycle it reads every event twice, which takes longer than all
    # steps.
    config = _ExperimentalConfig(capture_overload_names=True)
    with profile(record_shapes=operands, experimental_config=config) as session:
        for _ in range(times):
            with record_function(mark):
                call()
    results: Any = session.kineto_results
    overloads = {event.correlation_id(): event.overload_name() for event in results.events()}
    return [event for event in results.experimental_event_tree() if event.name == mark], overloads


def _calls(events: list[Any], overloads: dict[int, str], within: tuple[str, ...]) -> Iterator[OperatorCall]:
    """The calls of a composite operator replace it, because it has no kernel."""
    for event in events:
        if not is_operator(event):
            yield from _calls(event.children, overloads, within)
            continue
        overload = overloads.get(event.correlation_id, "")
        if is_composite(f"{event.name}.{overload}" if overload else event.name):
            yield from _calls(event.children, overloads, (*within, event.name))
        else:
            yield _call(event, overload, within)


def _call(event: Any, overload: str, within: tuple[str, ...]) -> OperatorCall:  # noqa: ANN401
    inner = [other for other in _below(event) if is_operator(other)]
    copied = [_operands(other) for other in (event, *inner) if other.name == "aten::copy_"]
    copies = [(operands[0], operands[1]) for operands in copied if len(operands) > 1]
    return OperatorCall(
        name=event.name,
        overload=overload,
        within=within,
        begin_ns=event.start_time_ns,
        seconds=event.duration_time_ns / 1e9,
        inner=len(inner),
        operands=_operands(event),
        copied=tuple(target for target, _ in copies),
        cast=tuple(target for target, source in copies if source.dtype != target.dtype),
    )


def is_composite(schema_name: str) -> bool:
    """Whether the operator only calls others (CompositeImplicitAutograd). False where unknown."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    if not torch._C._dispatch_has_kernel(schema_name):
        return False
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(schema_name, key))


def is_operator(event: Any) -> bool:  # noqa: ANN401
    called = event.tag == _EventType.TorchOp and event.extra_fields.scope == RecordScope.FUNCTION
    return called and "::" in event.name


def _below(event: Any) -> Iterator[Any]:  # noqa: ANN401
    for child in event.children:
        yield child
        yield from _below(child)


def _operands(event: Any) -> tuple[Operand, ...]:  # noqa: ANN401
    return tuple(
        Operand(tuple(item.sizes), tuple(item.strides), item.dtype)
        for item in tree_leaves(event.extra_fields.inputs)
        if hasattr(item, "sizes") and not isinstance(item, Tensor)
    )


SAME_CALL = {"aten::_reshape_alias": "aten::view"}
"""`aten::reshape` calls the left one, and under a dispatch mode the right one."""


@dataclass(frozen=True, slots=True)
class OperatorRecord:
    """One call below autograd. `line` is the innermost one outside torch, None where there is none.

    `to_host`: it got tensors of another device and returned one on the host.
    """

    schema_name: str
    line: SourceLine | None
    keys: list[str]
    is_view: bool
    to_host: bool


class CallsSeen(TorchDispatchMode):
    """While active, gives each call below autograd to `see`, in order. Composite operators are decomposed.

    In inference mode a dispatch mode gets composite operators whole; with autograd's keys, what they call.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def is_infra_mode(cls) -> bool:
        """True, because compiled code runs uncompiled under any other dispatch mode."""
        return True

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - the operator's result
        kwargs = kwargs or {}
        if func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
            with self:
                decomposed = func.decompose(*args, **kwargs)
            if decomposed is not NotImplemented:
                return decomposed
        result = func(*args, **kwargs)
        if not _is_autograds_copy(func):
            self.see(func, tensors_in((args, kwargs)), tensors_in(result))
        return result

    def see(self, func: OpOverload, given: list[Tensor], made: list[Tensor]) -> None:
        """Take a call of `func` with the tensors `given`, which returned `made`."""
        raise NotImplementedError


class OperatorRecorder(CallsSeen):
    """While active, appends one record per call to `seen`, in order."""

    def __init__(self, thread: ThreadKeys) -> None:
        super().__init__()
        self._thread = thread
        self.seen: list[OperatorRecord] = []

    def see(self, func: OpOverload, given: list[Tensor], made: list[Tensor]) -> None:
        elsewhere = any(tensor.device.type not in {"cpu", "meta"} for tensor in given)
        self.seen.append(
            OperatorRecord(
                schema_name=func.name(),
                line=calling_line(),
                keys=_keys(func, given, made, self._thread),
                is_view=is_view(func, given, made),
                to_host=elsewhere and any(tensor.device.type == "cpu" for tensor in made),
            )
        )


def tensors_in(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _keys(func: OpOverload, given: list[Tensor], made: list[Tensor], thread: ThreadKeys) -> list[str]:
    keys = keys_run(func.name(), given, thread)
    if keys[-1:] == ["BackendSelect"] and made:
        keys.append(made[0].device.type.upper())  # no tensor argument: the options choose the backend
    return keys


def is_view(func: OpOverload, given: Iterable[Tensor], made: list[Tensor]) -> bool:
    """Whether every result shares a storage with an argument, of an operator that mutates nothing."""
    if func._schema.is_mutable or not made:
        return False
    addresses = {tensor.untyped_storage()._cdata for tensor in given}
    return all(tensor.untyped_storage()._cdata in addresses for tensor in made)


def _is_autograds_copy(func: OpOverload) -> bool:
    """Whether `func` is a `detach` that only a dispatch mode sees: autograd's shallow copy of a saved output.

    Without a dispatch mode that copy calls no operator.
    """
    if func.name() != "aten::detach":
        return False
    line = calling_line()
    return line is None or "detach" not in line.text


KeySet = Any
"""torch's own `DispatchKeySet`."""


@dataclass(frozen=True, slots=True)
class ThreadKeys:
    """The dispatch keys that thread-local state includes in and excludes from every call."""

    included: KeySet
    excluded: KeySet

    @classmethod
    def now(cls) -> ThreadKeys:
        return cls(torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set())


def thread_keys(mode: Mode, device: torch.device, precision: Precision) -> ThreadKeys:
    with autocast_of(device, precision), GRAD_MODES[mode.grad_mode]():
        return ThreadKeys.now()


def key_set(*keys: KeySet) -> KeySet:
    found = torch._C.DispatchKeySet(torch._C.DispatchKey.Undefined)
    for each in keys:
        found = found | each
    return found


def keys_of(tensors: Iterable[Tensor]) -> KeySet:
    return key_set(*(torch._C._dispatch_keys(tensor) for tensor in tensors))


def keys_in_order(keys: KeySet) -> Iterator[tuple[str, Any]]:
    """Names and values of `keys`, highest priority first. Torch's enumeration lacks some of the names."""
    while (key := keys.highestPriorityTypeId()) != torch._C.DispatchKey.Undefined:
        yield str(torch._C._dispatch_key_name(key)), key
        keys = keys.remove(key)


def keys_run(schema_name: str, tensors: Iterable[Tensor], thread: ThreadKeys) -> list[str]:
    """The keys whose kernels a call of `schema_name` with `tensors` runs, first to last."""
    keys = key_set(keys_of(tensors), thread.included) - thread.excluded
    entries = dispatch_entries(schema_name)
    return [name for name, _ in keys_in_order(keys) if entries.get(name, MISSING).runs]


_ENTRY = re.compile(
    r"^(?P<key>\w+): (?P<through>fallthrough )?registered at (?P<place>.*?) \[(?P<kind>.*)\]$"
)
_SOURCE = re.compile(r"[\w.]+:\d+")


@dataclass(frozen=True, slots=True)
class DispatchEntry:
    """What an operator's dispatch table has for a key. `source` is the C++ file and line that registered it.

    `kind` is torch's word for how it came there: `kernel`, `autograd kernel`, `math kernel` of a composite,
    `backend fallback`, … `runs`: there is a kernel, and the dispatcher does not go on to the next key.
    """

    kind: str
    source: str | None
    runs: bool


MISSING = DispatchEntry("missing", None, runs=False)


@cache
def dispatch_entries(schema_name: str) -> dict[str, DispatchEntry]:
    """The computed table of an operator that torch has, by key, in the order of the keys' runtime entries."""
    found = {}
    for line in torch._C._dispatch_dump_table(schema_name).splitlines():
        if entry := _ENTRY.match(line):
            source = _SOURCE.search(entry["place"])
            runs = entry["through"] is None and entry["kind"] != MISSING.kind
            found[entry["key"]] = DispatchEntry(entry["kind"], source[0] if source else None, runs)
    return found


_OWN_PACKAGES = frozenset(name.partition(".")[0] for name in (__name__, Served.__module__))


@dataclass(frozen=True, slots=True)
class SourceLine:
    """Line `number` of `file`. `module` is empty for code of no module, such as an expression's."""

    file: str
    number: int
    module: str

    @classmethod
    def in_file(cls, file: str, number: int) -> SourceLine:
        """For torch's stacks, which have no module: that of the imported module whose file it is."""
        for name, module in list(sys.modules.items()):
            if getattr(module, "__dict__", {}).get("__file__") == file:
                return cls(file, number, name)
        return cls(file, number, "")

    @property
    def text(self) -> str:
        return linecache.getline(self.file, self.number).strip()

    @property
    def is_generated(self) -> bool:
        """Whether Inductor wrote it. Such code has a module name below torch's."""
        return Path(self.file).is_relative_to(cache_dir())

    def is_in(self, package: str) -> bool:
        return self.module == package or self.module.startswith(f"{package}.")

    def __str__(self) -> str:
        """`service/anatomy/common.py:7` for our modules, the last two parts of the path for others."""
        if self.is_generated:
            return f"generated code:{self.number}"
        path = Path(self.file)
        if self.module.partition(".")[0] not in _OWN_PACKAGES:
            return f"{'/'.join(path.parts[-2:])}:{self.number}"
        end = "/__init__.py" if path.name == "__init__.py" else ".py"
        return f"{self.module.replace('.', '/')}{end}:{self.number}"


def calling_line() -> SourceLine | None:
    """The innermost line that is neither torch's nor this module's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__") or ""
        line = SourceLine(frame.f_code.co_filename, frame.f_lineno, name)
        of_torch = line.is_in(torch.__name__) and not line.is_generated
        if line.module != __name__ and not of_torch:
            return line
        frame = frame.f_back
    return None


REPORTED = "called a synchronizing CUDA operation"
"""torch's own text for a wait. When the mode is set it also warns that this is a prototype."""

NO_DEVICE = "on a CPU operators run where they are called: there are no launches and no kernels to count"


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """The typical one of several profiled steps, and the median kernel time of those where it is known.

    `kernel_seconds` None: none is known, for the reason that `step` has.
    """

    step: ProfiledStep
    kernel_seconds: Interval | None


def device_work(bench: AnyBench, case: AnyCase) -> DeviceWork | None:
    """What `case` does on the device, called as its clock calls it; None on a CPU."""
    if bench.device.type != "cuda":
        return None
    attach_profiler(bench.device)
    bench.synchronise()
    steps = profile_steps(case.step, [(case.arguments, INTERVAL_STEPS)])
    known = [step.kernel_seconds for step in steps if step.kernel_seconds is not None]
    return DeviceWork(typical_step(steps), median_interval(known) if known else None)


def reported_waits(bench: AnyBench, case: AnyCase) -> list[str]:
    """The lines of one step that CUDA's sync debug mode reports; empty on a CPU."""
    if bench.device.type != "cuda":
        return []
    bench.synchronise()
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            case.call()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return [str(SourceLine.in_file(w.filename, w.lineno)) for w in caught if REPORTED in str(w.message)]
