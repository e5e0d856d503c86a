"""A plugin of pytest: `inference_budget` counts, without a clock, what one call of a module costs PyTorch.

It lies beside the packages, and imports neither them nor torch before a test asks for it: pytest loads it in
every project of the environment, which may have packages called `models` and `service` of its own.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from torch import Tensor, nn

OURS = ("service", "models")


class Counts(NamedTuple):
    """What was counted. `host_instructions`: None where it was not asked for or cannot be counted here."""

    graph_breaks: int
    recompiles: int
    host_instructions: int | None


@pytest.fixture
def inference_budget(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Counts]:
    """Fails the test where a call of a module costs more than it may; says at which file and line.

    Args of what it gives:
        model: in evaluation mode. It is compiled by `torch.compile` with its defaults.
        inputs: a tensor, a tuple of arguments, a dict of named ones, or a list of such: calls in turn, of
            which all but the first may compile again. Or the function `inputs(batch, seed)` of a factory. In
            a list, and from a factory, a list is a tuple. Arguments may be trees of tensors.
        graph_breaks: how many the first call may have. A function that is not compiled at all is one.
        recompiles: how many compilations the calls may need after the first one, each input called twice.
        host_instructions: how many of them a call under `inference_mode`, not compiled, may execute outside
            of kernels. Warned about, and not checked, where the machine cannot count them.
        parity: the compiled module, by Inductor, must return what it returns itself.
    """

    def check(
        model: nn.Module,
        inputs: Any,  # noqa: ANN401 - see above
        graph_breaks: int = 0,
        recompiles: int = 0,
        host_instructions: int | None = None,
        parity: bool = True,
    ) -> Counts:
        import torch

        _require(not model.training, "the module is in training mode: call .eval() on it")
        examples = list(_examples(inputs))
        _require(bool(examples), "inputs is an empty list: give the arguments of one call at least")
        with torch.inference_mode():
            breaks, again, differences = _compiled(model, examples, parity)
            _limit("graph break", breaks, graph_breaks)
            _limit("recompile", again, recompiles)
            _require(not differences, f"the compiled module returns something else: {'; '.join(differences)}")
            executed = None
            if host_instructions is not None:
                args, kwargs = examples[0]
                executed = _executed(lambda: model(*args, **kwargs), tmp_path_factory)
        if executed is not None and host_instructions is not None:
            said = f"a call executes {executed} instructions on the host, {host_instructions} are allowed"
            _require(executed <= host_instructions, said)
        return Counts(len(breaks), len(again), executed)

    return check


def _require(kept: bool, said: str) -> None:
    if not kept:  # not a statement `assert`, to which pytest would add lines of its own
        raise AssertionError(said)


def _limit(what: str, found: list[str], allowed: int) -> None:
    plural = "" if len(found) == 1 else "s"
    _require(len(found) <= allowed, f"{len(found)} {what}{plural}, {allowed} allowed: {'; '.join(found)}")


def _examples(inputs: Any) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:  # noqa: ANN401
    """Positional and named arguments of each call."""
    if callable(inputs) and not hasattr(inputs, "shape"):
        try:
            inspect.signature(inputs).bind(2, 0)
        except TypeError as error:
            raise AssertionError(f"inputs is called with (2, 0) ({error}): give what it returns") from None
        inputs = [inputs(2, seed) for seed in (0, 1)]
    for example in inputs if isinstance(inputs, list) else [inputs]:
        if isinstance(example, Mapping):
            yield (), dict(example)
        else:
            yield (tuple(example) if isinstance(example, tuple | list) else (example,)), {}


def _compiled(
    model: nn.Module, examples: list[tuple[tuple[Any, ...], dict[str, Any]]], parity: bool
) -> tuple[list[str], list[str], list[str]]:
    """Graph breaks of the first call, recompilations of all, and where results are not the module's own."""
    import torch
    from torch._dynamo.utils import clear_compilation_metrics, get_compilation_metrics, graph_break_reasons

    torch.compiler.reset()  # else code that another test has compiled would hide what this one is to find
    clear_compilation_metrics()
    logging.getLogger("torch.__trace").propagate = False  # pytest would show its hundreds of empty lines
    step = torch.compile(model, backend="inductor" if parity else "eager")
    breaks: list[str] = []
    differences: list[str] = []
    for number, (args, kwargs) in enumerate([example for example in examples for _ in range(2)]):
        found = step(*args, **kwargs)
        if parity:
            differences += _differences(found, model(*args, **kwargs), "the result")
        if number == 0:
            places = [(one.user_stack[-1], one.reason) for one in graph_break_reasons if one.user_stack]
            breaks = [f"{place.filename}:{place.lineno} ({_first(why)})" for place, why in places]
            breaks += [
                f"{one.fail_user_frame_filename}:{one.fail_user_frame_lineno} ({_first(one.fail_reason)})"
                for one in get_compilation_metrics()
                if one.fail_type is not None
            ]
    again = [
        f"{one.co_filename}:{one.co_firstlineno} ({_first(one.recompile_reason)})"
        for one in get_compilation_metrics()
        if one.recompile_reason is not None
    ]
    torch.compiler.reset()
    return breaks, again, differences


def _first(text: str | None) -> str:
    return (text or "no reason given").splitlines()[0]


def _differences(found: Any, expected: Any, place: str) -> Iterator[str]:  # noqa: ANN401 - any tree
    """Where two trees of results differ: integers at all, floats by more than rounding, NaN not from NaN."""
    import torch

    own, parts = _parts(found), _parts(expected)
    if isinstance(expected, torch.Tensor):
        try:
            torch.testing.assert_close(found, expected, rtol=0.0, atol=_room(expected), equal_nan=True)
        except (AssertionError, TypeError) as error:
            yield f"{place}: {' '.join(str(error).split())}"
    elif own.keys() != parts.keys():
        yield f"{place} has {', '.join(own) or 'no parts'} in place of {', '.join(parts) or 'no parts'}"
    elif parts:
        for name, part in parts.items():
            yield from _differences(own[name], part, place + name)
    elif getattr(type(expected), "__eq__", None) is object.__eq__:
        kind = type(expected).__name__
        yield f"{place} of type {kind} cannot be compared: return tensors, or give parity=False"
    elif found != expected:
        yield f"{place}: {found!r} is not {expected!r}"


def _parts(tree: Any) -> dict[str, Any]:  # noqa: ANN401 - any tree
    """What is in `tree`, by how an expression names it; nothing where it is a leaf."""
    if isinstance(tree, Mapping):
        return {f"[{key!r}]": part for key, part in tree.items()}
    if isinstance(tree, tuple | list):
        return {f"[{number}]": part for number, part in enumerate(tree)}
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return {f".{field.name}": getattr(tree, field.name) for field in dataclasses.fields(tree)}
    return {}


def _room(expected: Tensor) -> float:
    """How far floats may be off: by rounding of their dtype, relative to the largest of them."""
    import torch

    if not expected.numel() or not expected.is_floating_point():
        return 0.0
    relative = {torch.float64: 1e-12, torch.float32: 1e-5}.get(expected.dtype, 2e-2)
    largest = float(expected.nan_to_num(0.0, 0.0, 0.0).abs().max())
    return relative * max(largest, 1.0)


def _executed(call: Callable[[], object], folders: pytest.TempPathFactory) -> int | None:
    """Instructions on the host of `call`, by this thread; None, with a warning, where none are counted."""
    theirs = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in OURS}
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, here)
    try:
        from service.measure.cpu_sampler import InstructionCounter, SamplerError

        try:
            counter = InstructionCounter(Path(folders.getbasetemp()) / "launchbound")
            return counter.count_settled(call).of("host")
        except SamplerError as error:
            warnings.warn(pytest.PytestWarning(f"host_instructions were not counted: {error}"), stacklevel=3)
            return None
    finally:
        sys.path.remove(here)
        for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
            del sys.modules[name]
        sys.modules.update(theirs)
