"""What the dispatcher does in one call: its key set, the calls made in turn, and the keys of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._C._profiler import RecordScope, _EventType, _ExperimentalConfig
from torch.autograd.profiler import profile, record_function

from service.anatomy.operator_call.finding import DispatchedCall, TableRow, VisitedKey

KeySet = Any
"""torch's own `DispatchKeySet`."""

COMPOSITE = "math kernel"
"""How torch calls a kernel that only calls other operators (CompositeImplicitAutograd)."""

MARK = "launchbound: the call"

_KEY = torch._C.DispatchKey
_ROW = re.compile(r"(\w+): (fallthrough )?(.*) \[([\w ]+)\]")
_SOURCE = re.compile(r"[\w.]+:\d+")
_ABOVE_BACKENDS = ("Autocast", "Autograd", "ADInplaceOrView", "BackendSelect")


@dataclass(frozen=True, slots=True)
class ThreadKeys:
    """The keys that the thread's state includes in every call, and excludes from it."""

    included: KeySet
    excluded: KeySet

    @classmethod
    def now(cls) -> ThreadKeys:
        """Those of the present state."""
        return cls(torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set())


def key_set(*keys: KeySet) -> KeySet:
    """All of `keys` in one set."""
    found = torch._C.DispatchKeySet(_KEY.Undefined)
    for each in keys:
        found = found | each
    return found


def keys_of(tensors: Iterable[Tensor]) -> KeySet:
    """The keys that `tensors` bring."""
    return key_set(*(torch._C._dispatch_keys(tensor) for tensor in tensors))


def names(keys: KeySet) -> list[str]:
    """The names of `keys`, highest priority first."""
    return [_name(key) for key in _in_order(keys)]


def _name(key: Any) -> str:  # noqa: ANN401 - torch's enumeration, which has no name for some of its values
    return str(torch._C._dispatch_key_name(key))


def _in_order(keys: KeySet) -> Iterator[Any]:
    while (key := keys.highestPriorityTypeId()) != _KEY.Undefined:
        yield key
        keys = keys.remove(key)


@dataclass(frozen=True, slots=True)
class _Registration:
    kind: str | None
    source: str | None


@cache
def _table(schema_name: str) -> dict[str, _Registration]:
    """By key, the kernel in the dispatcher's computed table; `kind` None where it falls through."""
    found = {}
    for line in torch._C._dispatch_dump_table(schema_name).splitlines():
        if row := _ROW.fullmatch(line):
            source = _SOURCE.search(row[3])
            kind = None if row[2] or row[4] == "missing" else row[4]
            found[row[1]] = _Registration(kind, source[0] if source else None)
    return found


def table(schema_name: str, rows: KeySet, dispatched_on: KeySet) -> list[TableRow]:
    """The rows of the operator's dispatch table for the keys in `rows`."""
    present = set(names(dispatched_on))
    registered = _table(schema_name)
    nothing = _Registration(None, None)
    return [
        TableRow(key=name, kind=entry.kind, source=entry.source, in_key_set=name in present)
        for name in names(rows)
        for entry in (registered.get(name, nothing),)
    ]


def visit(schema_name: str, keys: KeySet) -> tuple[list[VisitedKey], KeySet | None]:
    """The keys that a call dispatched on `keys` visits, and those that are excluded from the calls it makes.

    Autocast's kernel calls the operator again from the top without its own key, a composite one calls others
    with all. None where a backend's kernel ends the visit: its calls are below autograd, on its own tensors.
    """
    visited = []
    for key in _in_order(keys):
        name = _name(key)
        entry = _table(schema_name).get(name)
        if entry is None or entry.kind is None:
            continue
        visited.append(VisitedKey(key=name, kind=entry.kind))
        if name.startswith("Autocast"):
            return visited, torch._C.DispatchKeySet(key)
        if entry.kind == COMPOSITE:
            return visited, torch._C.DispatchKeySet(_KEY.Undefined)
        if not name.startswith(_ABOVE_BACKENDS):
            break
    return visited, None


def dispatched(call: Callable[[], object], keys: KeySet) -> list[DispatchedCall]:
    """The entries into the dispatcher that `call` makes, by torch's profiler; `keys` are those of the first.

    Runs it twice: autocast keeps the casts of weights from the first.
    """
    call()
    config = _ExperimentalConfig(capture_overload_names=True)
    with profile(experimental_config=config) as session, record_function(MARK):
        call()
    results: Any = session.kineto_results
    overloads = {event.correlation_id(): event.overload_name() for event in results.events()}
    (mark,) = (event for event in results.experimental_event_tree() if event.name == MARK)
    return list(_entries(mark.children, overloads, keys, 0))


def _entries(
    events: list[Any], overloads: dict[int, str], keys: KeySet | None, depth: int
) -> Iterator[DispatchedCall]:
    for event in events:
        if not _is_operator(event):
            yield from _entries(event.children, overloads, keys, depth)
            continue
        overload = overloads.get(event.correlation_id, "")
        schema_name = f"{event.name}.{overload}" if overload else event.name
        visited, excludes = visit(schema_name, keys) if keys is not None else (None, None)
        yield DispatchedCall(operator=schema_name, depth=depth, keys=visited)
        below = None if excludes is None else keys - excludes
        yield from _entries(event.children, overloads, below, depth + 1)


def _is_operator(event: Any) -> bool:  # noqa: ANN401 - an event of torch's tree
    return (
        event.tag == _EventType.TorchOp
        and event.extra_fields.scope == RecordScope.FUNCTION
        and "::" in event.name
    )
