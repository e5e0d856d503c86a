"""Turns a row of the ladder into a callable step, compiled in isolation where the row compiles."""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch._dynamo.exc import Unsupported, UserError
from torch._dynamo.utils import counters, dynamo_timed
from torch._inductor import config as inductor_config
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.utils._pytree import tree_flatten, tree_map_only

from models.served import Cache
from service.modes import GradMode, Mode
from service.start_records import EXPORT
from service.step.buffers import Arguments, symbolic_size
from service.step.compile_cache import keep_open
from service.step.graphs import captured_step, record_cuda_graph
from service.step.loaded_model import Precision

Step = Callable[[Tensor, Tensor, Tensor, Cache], tuple[Tensor, Tensor]]
"""(tokens, positions, last, cache) → (logits, greedy token); shapes as in `Served.forward`.

Where a graph is replayed, the next call of any step may overwrite the result: copy what is to last."""

BREAKS = (Unsupported, UserError)
"""What Dynamo raises of a model that is to be one graph, and has to be broken."""

AnyStep = Callable[..., Any]
"""A step of a served model or of a module, as code sees it that passes arguments and results on."""

_CONTEXTS: dict[GradMode, Callable[[], AbstractContextManager[Any]]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}

InjectedWork = Callable[[], object]
"""Extra work inside every step, for checks only: no request can add any."""


class StepForm(NamedTuple):
    """What a step is made with: `forward`, of a model, with a name and a code object of its own; `packaged`,
    of a model, as a package with options; `taped`, around a step, frees what autograd has recorded in it;
    `frozen`, around a compiled step, has it compiled with constant weights.
    """

    forward: Callable[[Any, str], AnyStep]
    packaged: Callable[[nn.Module, dict[str, Any]], AnyStep]
    taped: Callable[[AnyStep], AnyStep]
    frozen: Callable[[AnyStep], AnyStep]


def build_step(
    mode: Mode, model: nn.Module, injected: InjectedWork | None = None, precision: Precision | None = None
) -> Step:
    """A new callable for `mode`: it shares weights with the other ones, but no compiled entry.

    Neither `injected` nor a `precision` without autocast leaves any code in a step that does not use it.
    """
    device_type = next(model.parameters()).device.type
    return step_of(mode, model, SERVED, device_type, injected, precision)


def step_of(
    mode: Mode,
    model: nn.Module,
    form: StepForm,
    device_type: str,
    injected: InjectedWork | None = None,
    precision: Precision | None = None,
) -> AnyStep:
    """As `build_step`, of any model: `form` says what its step is called with, and returns."""
    effect = mode.effect(device_type)
    if effect.package is not None:
        step = form.packaged(model, effect.package)
    else:
        step = form.forward(model, f"step_{mode.name}")
    if effect.compile is not None:
        step = torch.compile(step, **effect.compile)
        if effect.freezes:
            step = form.frozen(step)
    if effect.captured:
        step = captured_step(step, record_cuda_graph)
    if injected is not None:
        step = _with_injected_work(step, injected)
    step = form.taped(step) if mode.grad_mode == "enabled" else _within(_CONTEXTS[mode.grad_mode](), step)
    if precision is not None and precision.autocast is not None:
        step = _within(torch.autocast(device_type, precision.autocast), step)
    return _replayed(step) if effect.graph_replay and not effect.captured else step


def forward_of(model: Callable[..., Any], name: str) -> Step:
    """The model's forward with a code object of its own: entries of one share a recompile limit."""

    def forward(tokens: Tensor, positions: Tensor, last: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = model(tokens, positions, last, cache)
        return result

    code = forward.__code__.replace(co_name=name)
    return types.FunctionType(code, forward.__globals__, name, forward.__defaults__, forward.__closure__)


def _frozen(run: AnyStep) -> AnyStep:
    """`run`, compiled at its first call with constant weights: torch.compile's options apply too late."""
    compiled = False

    def frozen(*arguments: Any) -> Any:  # noqa: ANN401 - those of any step
        nonlocal compiled
        if compiled:
            return run(*arguments)
        with inductor_config.patch(freezing=True):
            result = run(*arguments)
        compiled = True
        return result

    return frozen


def _within(context: AbstractContextManager[Any], run: AnyStep) -> AnyStep:
    """`run` inside `context`, one object for all steps: making a new one costs more than entering it."""

    def within(*arguments: Any) -> Any:  # noqa: ANN401 - those of any step
        with context:
            return run(*arguments)

    return within


def _taped(run: Step) -> Step:
    """Grad mode on. The tape is freed inside the step, and so inside its timed call, as part of its cost."""

    grad_mode = torch.enable_grad()

    def taped(tokens: Tensor, positions: Tensor, last: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        with grad_mode:
            logits, greedy = run(tokens, positions, last, cache)
            return logits.detach(), greedy

    return taped


def _replayed(run: AnyStep) -> AnyStep:
    """Mark each call as a new step for CUDA-graph trees, which may then reuse the last one's outputs."""

    def replayed(*arguments: Any) -> Any:  # noqa: ANN401 - those of any step
        torch.compiler.cudagraph_mark_step_begin()
        return run(*arguments)

    return replayed


def _with_injected_work(run: AnyStep, injected: InjectedWork) -> AnyStep:
    """`run`, then the injected work: in the step's grad mode and inside its timed call."""

    def with_injected_work(*arguments: Any) -> Any:  # noqa: ANN401 - those of any step
        result = run(*arguments)
        injected()
        return result

    return with_injected_work


# Steps compiled ahead of time: exported, packaged by AOTInductor, and run without Python in them

PACKAGES_MADE = "packages_made"
"""Among torch's compile counters, in the group `launchbound`: packages compiled because none was found."""


def packaged_step(model: nn.Module, options: dict[str, Any]) -> Step:
    """A step of `model` as a package, which its first call makes, or finds made by an earlier process.
    `options` are settings of `torch._inductor.config`. Sizes that the arguments mark as dynamic stay so.
    """
    package: Callable[[list[Tensor]], list[Tensor]] | None = None

    def step(tokens: Tensor, positions: Tensor, last: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        nonlocal package
        flat = [tokens, positions, last]
        for layer in cache:
            flat += layer
        if package is not None:
            logits, greedy = package(flat)
            return logits, greedy
        arguments = tokens, positions, last, cache
        exported = Exported(PositionalStep(model), arguments, {}, _dynamic(arguments))
        with unpacking():
            package = load_package(model, options, exported).boxed_run
            # Called here as well: on CUDA it reads a kernel from its files when it first launches it.
            logits, greedy = package(flat)
        return logits, greedy

    return step


SERVED = StepForm(forward_of, packaged_step, _taped, _frozen)
"""A step of a language model, called with the tensors of `service.step.buffers`."""


class Exported(NamedTuple):
    """What is exported: `program`, called with `args` and `kwargs`, and which of their sizes are symbolic."""

    program: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dynamic_shapes: tuple[Any, ...] | None = None


class Package(Protocol):
    """A loaded package."""

    def boxed_run(self, tensors: list[Tensor]) -> list[Tensor]:
        """What it computes of its tensors in order; the list it is given is emptied."""

    def get_call_spec(self) -> list[str]:
        """The trees of its arguments and of its results, as torch writes them."""


@contextmanager
def unpacking() -> Iterator[None]:
    """Have torch unpack a package where it is removed again: a process that is ended leaves what it unpacked,
    for `small` 0.6 GB per package, in the folder for temporary files. Its libraries stay open, so that their
    functions can be named.
    """
    before = os.environ.get("TMPDIR")
    with TemporaryDirectory(dir=_package_folder()) as folder:
        os.environ["TMPDIR"] = folder
        try:
            yield
            for library in Path(folder).rglob("*.so"):
                keep_open(library)
        finally:
            os.environ.pop("TMPDIR")
            if before is not None:
                os.environ["TMPDIR"] = before


def _package_folder() -> Path:
    folder = Path(cache_dir()) / "packages"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def load_package(
    model: nn.Module, options: dict[str, Any], exported: Exported, by_graph: bool = False
) -> Package:
    """The step of `model` for the like of its arguments, from the cache of compiled code or made new. It is
    to be called once within `unpacking`. `by_graph`: it is known by the graph that is exported, which takes
    seconds, and not by the sources of its classes. A user's module may compute something else with these.
    """
    folder = _package_folder()
    program = _program(exported) if by_graph else None
    code = _graphs(program) if program else _code(model)
    file = folder / f"{package_identity(model, options, (exported.args, exported.kwargs), code)}.pt2"
    if not file.exists():
        with TemporaryDirectory(dir=folder) as unfinished:
            made = _compile(program or _program(exported), options, Path(unfinished) / file.name)
            counters["launchbound"][PACKAGES_MADE] += 1
            # Renamed into place when it is complete: a process that is ended meanwhile leaves no half of one.
            os.replace(made, file)
    loader: Package = torch._inductor.aoti_load_package(str(file)).loader
    return loader


def _program(exported: Exported) -> ExportedProgram:
    # Tensors of inference mode cannot be traced into an exported program.
    with torch.inference_mode(False), torch.no_grad(), dynamo_timed(EXPORT):
        return torch.export.export(
            exported.program,
            # Not the arguments themselves: export takes off the marks of those that it is given.
            tree_map_only(Tensor, Tensor.detach, exported.args),
            tree_map_only(Tensor, Tensor.detach, exported.kwargs),
            dynamic_shapes=exported.dynamic_shapes,
            # Of a symbolic length it cannot prove all that is true of every length in its range.
            prefer_deferred_runtime_asserts_over_guards=True,
        )


def _compile(program: ExportedProgram, options: dict[str, Any], file: Path) -> str:
    with torch.inference_mode(False), torch.no_grad():
        return torch._inductor.aoti_compile_and_package(
            program, package_path=str(file), inductor_configs=dict(options)
        )


class PositionalStep(nn.Module):
    """`model` with the signature of a step: export reads names from it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, positions: Tensor, last: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = self.model(tokens, positions, last, cache)
        return result


def _dynamic(arguments: Arguments) -> tuple[Any, ...]:
    """The symbolic dimensions of a step's arguments: a length of tokens, one reach for the whole cache."""
    tokens, _, _, cache = arguments
    reach = _dimension("reach", cache[0][0])
    return _dimension("length", tokens), None, None, tuple((reach, reach) for _ in cache)


def _dimension(name: str, tensor: Tensor) -> dict[int, Any] | None:
    size = symbolic_size(tensor)
    if size is None:
        return None
    if size.enforced:
        return {1: torch.export.Dim(name, min=size.least, max=size.most)}
    # A dimension with a name would refuse to be asked for more than its range.
    return {1: torch.export.Dim.DYNAMIC(min=size.least, max=size.most)}


def package_identity(
    model: nn.Module, options: dict[str, Any], arguments: tuple[Any, ...], code: list[Any]
) -> str:
    """Hex digits of all that a package depends on, from torch to the arguments' layout; weights, because a
    package may hold them packed. `code` is what is compiled of `model`.
    """
    leaves, tree = tree_flatten(arguments)
    device = next(leaf.device for leaf in leaves if isinstance(leaf, Tensor))
    # With its number, which is written into the code of operators that are not compiled.
    gpu = str, torch.cuda.get_device_name, torch.cuda.get_device_capability
    parts = [
        torch.__version__,
        sys.version,
        torch.backends.cpu.get_cpu_capability(),
        [of(device) for of in gpu if device.type == "cuda"],
        torch.get_num_threads(),
        [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")],
        sorted(options.items()),
        code,
        _weights(model),
        [
            (t.dtype, t.device.type, t.shape, t.stride(), symbolic_size(t)) if isinstance(t, Tensor) else t
            for t in leaves
        ],
        tree,
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _graphs(program: ExportedProgram) -> list[str]:
    """The operators with their arguments, and constants that are no weights of the module."""
    graphs = [str(part.graph) for part in program.graph_module.modules() if isinstance(part, GraphModule)]
    constants = program.constants.values()
    return [*graphs, *(_values([one]) if isinstance(one, Tensor) else repr(one) for one in constants)]


def _code(model: nn.Module) -> list[tuple[str, str]]:
    """The classes that `model` is made of, each with the digest of its source file."""
    kinds = {type(module) for module in model.modules()}
    sources = {(f"{kind.__module__}.{kind.__qualname__}", inspect.getsourcefile(kind)) for kind in kinds}
    return sorted((name, _digest([Path(file).read_bytes()])) for name, file in sources if file)


def _weights(model: nn.Module) -> str:
    if model not in _WEIGHTS:
        _WEIGHTS[model] = _values((*model.parameters(), *model.buffers()))
    return _WEIGHTS[model]


_WEIGHTS: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def _values(tensors: Iterable[Tensor]) -> str:
    return _digest(
        tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data for tensor in tensors
    )


def _digest(blocks: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block)
    return digest.hexdigest()
