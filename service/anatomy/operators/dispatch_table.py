"""The dispatch table of one operator: which kernel the dispatcher calls for each key."""

from __future__ import annotations

import difflib
import re

import msgspec
import torch

from service.anatomy.errors import StudyError

_ENTRY = re.compile(
    r"^(?P<key>\w+): (?P<through>fallthrough )?registered at (?P<place>.*?) \[(?P<kind>.*)\]$"
)


class DispatchEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What the table has for `key`. `place` is the C++ file and line that registered the kernel.

    `kind` is torch's word for how it came there: `kernel`, `autograd kernel`, `math kernel` of a composite,
    `backend fallback`, … `falls_through`: the dispatcher goes on to the next key.
    """

    key: str
    kind: str
    place: str
    falls_through: bool


class DispatchTable(msgspec.Struct, frozen=True, kw_only=True):
    """The computed table of `operator`, in the order of the keys' runtime entries."""

    operator: str
    entries: list[DispatchEntry]


def read_dispatch_table(operator: str) -> DispatchTable:
    """The table of `operator`, such as `aten::add.Tensor`. Raises StudyError for a name that torch lacks."""
    names = torch._C._dispatch_get_all_op_names()
    if operator not in names:
        near = difflib.get_close_matches(operator, names, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ": names are as aten::add.Tensor"
        raise StudyError("invalid_request", f"no operator '{operator[:64]}'{hint}", "operator")
    lines = torch._C._dispatch_dump_table(operator).splitlines()
    found = [_ENTRY.match(line) for line in lines]
    return DispatchTable(operator=operator, entries=[_entry(one) for one in found if one])


def _entry(found: re.Match[str]) -> DispatchEntry:
    return DispatchEntry(
        key=found["key"],
        kind=found["kind"],
        # Without the folders of the machine that built torch.
        place="/".join(found["place"].split("/")[-2:]),
        falls_through=found["through"] is not None,
    )
