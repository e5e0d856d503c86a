"""The answer for a user's module as a program: it runs and times the mode's PyTorch without launchbound."""

from __future__ import annotations

from string import Template
from textwrap import indent
from typing import Any, Literal, Protocol

from models.naming import PREFIX, find_source


class Effect(Protocol):
    """What a mode does on a device: a row of the ladder has these."""

    @property
    def name(self) -> str: ...

    @property
    def compile(self) -> dict[str, Any] | None: ...

    @property
    def package(self) -> dict[str, Any] | None: ...

    @property
    def graph_replay(self) -> bool: ...

    @property
    def captured(self) -> bool: ...

    @property
    def freezes(self) -> bool: ...


_SCRIPT = Template('''"""$title: its PyTorch, timed without launchbound.

    python this_file.py
"""

import gc
import importlib
import importlib.util
import statistics
import sys
import tempfile
import time

import torch
from torch.utils._pytree import tree_map_only

torch.manual_seed(0)
$threads
sys.path.insert(0, $root)
$load
built = module.$factory()
model, inputs = built if isinstance(built, tuple) else (built.model, built.inputs)


def placed(tensor):
    return tensor.detach().to($device, torch.$dtype if tensor.is_floating_point() else tensor.dtype)


for tensor in [*model.parameters(), *model.buffers()]:
    tensor.data = placed(tensor)
torch.manual_seed(0)
${choice}example = inputs($batch, 0$argument)
args, kwargs = ((), dict(example)) if hasattr(example, "keys") else (example, {})
args = (args,) if isinstance(args, torch.Tensor) else tuple(args)
args, kwargs = tree_map_only(torch.Tensor, placed, (args, kwargs))

# The mode: this is what to write in a program of one's own.
$mode


def wait():
    if $device != "cpu":
        torch.cuda.synchronize()


def seconds_per_call(calls):
    wait()
    began = time.perf_counter()
    for _ in range(calls):
        step()
    wait()
    return (time.perf_counter() - began) / calls


step()
# Python's collector would look through all that was imported and compiled, again and again, between calls.
gc.collect()
gc.freeze()
warm_up_ends = time.perf_counter() + 1.0
while time.perf_counter() < warm_up_ends:
    estimate = seconds_per_call(3)
calls = max(1, round(0.02 / estimate))
blocks = sorted(seconds_per_call(calls) for _ in range(21))
# The 6th and the 16th of 21 enclose the median of all such blocks in 97 of 100 cases.
median, low, high = statistics.median(blocks), blocks[5], blocks[15]
print(f"{1e3 * median:.4g} ms per call of batch $batch$size ({1e3 * low:.4g} to {1e3 * high:.4g} ms)")
$reported''')


def script_of(
    name: str,
    grad_mode: Literal["enabled", "no_grad", "inference_mode"],
    effect: Effect,
    batch_size: int,
    dtype: str,
    seconds: float | None,
    device: str = "cpu",
    threads: int | None = None,
    size: str | None = None,
) -> str:
    """A program that calls the module of the factory called `name` as a mode of the ladder does, on inputs of
    its `size`, if it has sizes.

    It prints the time of a call beside the reported `seconds`. `dtype` is a precision's name. Raises
    ModuleError where there is no such file.
    """
    source = find_source(name)
    if source.file is None:
        load = f"module = importlib.import_module({source.name!r})"
    else:
        own = source.name.removeprefix(PREFIX)
        load = (
            f"spec = importlib.util.spec_from_file_location({own!r}, {str(source.file)!r})\n"
            "module = importlib.util.module_from_spec(spec)\n"
            f"sys.modules[{own!r}] = module\n"
            "spec.loader.exec_module(module)"
        )
    casts = dtype.startswith("autocast-")
    reported = "" if seconds is None else f'print("{1e3 * seconds:.4g} ms was reported by launchbound")\n'
    return _SCRIPT.substitute(
        title=f"{name} in the mode {effect.name}{'' if size is None else f', size {size}'}",
        choice="" if size is None else f"size = next(one for one in built.sizes if str(one) == {size!r})\n",
        argument="" if size is None else ", size",
        size="" if size is None else ", size {size}",
        threads="" if threads is None else f"torch.set_num_threads({threads})",
        root=repr(str(source.root)),
        load=load,
        factory=source.factory,
        device=repr(device),
        dtype="float32" if casts else dtype,
        batch=batch_size,
        mode=_mode(grad_mode, effect, device, dtype.removeprefix("autocast-") if casts else None),
        reported=reported,
    )


def _mode(grad_mode: str, effect: Effect, device: str, autocast: str | None) -> str:
    """The lines that define `step`, and what they need."""
    call, before = "model(*args, **kwargs)", ""
    if effect.package is not None:
        before, call = _PACKAGE.substitute(options=repr(effect.package)), _PACKAGED
    elif effect.compile is not None:
        given = ", ".join(f"{option}={value!r}" for option, value in effect.compile.items())
        # Of the module itself torch makes a module, whose call passes nn.Module's and takes longer.
        function = "lambda *args, **kwargs: model(*args, **kwargs)"
        before, call = f"compiled = torch.compile({function}, {given})\n", "compiled(*args, **kwargs)"
    kind = device.partition(":")[0]
    contexts = {} if grad_mode == "enabled" else {"grad_mode": f"torch.{grad_mode}()"}
    if autocast is not None:
        contexts["autocast"] = f"torch.autocast({kind!r}, torch.{autocast})"
    before += "".join(f"{one} = {made}\n" for one, made in contexts.items())
    body = f"return {call}"
    if effect.graph_replay and not effect.captured:
        body = f"torch.compiler.cudagraph_mark_step_begin()\n{body}"
    if contexts:
        body = f"with {', '.join(contexts)}:\n{indent(body, '    ')}"
    step = f"{before}\n\ndef step():\n{indent(body, '    ')}\n"
    if effect.freezes and effect.compile is not None:
        step += _FREEZE
    return step + (_CAPTURE if effect.captured else "")


_PACKAGE = Template("""from torch.utils._pytree import tree_leaves, tree_unflatten, treespec_loads

folder = tempfile.TemporaryDirectory()
with torch.no_grad():
    program = torch.export.export(model, args, kwargs)
    package = torch._inductor.aoti_compile_and_package(
        program, package_path=f"{folder.name}/step.pt2", inductor_configs=$options
    )
# Arguments are taken apart once: at every call that may take longer than the call.
packaged = torch._inductor.aoti_load_package(package).loader
tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
results = treespec_loads(packaged.get_call_spec()[1])
""")

_PACKAGED = "tree_unflatten(packaged.boxed_run(list(tensors)), results)"

_FREEZE = """

with torch._inductor.config.patch(freezing=True):  # the weights become constants as it compiles
    step()
"""

_CAPTURE = """

side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):  # what compiles or allocates at first must not be recorded
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    output = step()
step = graph.replay
"""
