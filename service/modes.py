"""The ladder of inference modes as a table: another mode is one more row.

Pure data, so that the front can name and explain the modes without torch; `service.step.callables` turns a
row into something that runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

GradMode = Literal["enabled", "no_grad", "inference_mode"]
CompileOptions = dict[str, Any]
"""Keyword arguments of `torch.compile`."""

InductorOptions = dict[str, Any]
"""Settings of `torch._inductor.config` by name."""


def _within(contexts: list[str], statement: str) -> str:
    return f"with {', '.join(contexts)}: {statement}" if contexts else statement


@dataclass(frozen=True, slots=True)
class Effect:
    """What a mode really does on one kind of device: its effective name, and the reason where it differs.

    `compile` or `package`: what `torch.compile` or AOTInductor is called with. `graph_replay`: a step is one
    replayed CUDA graph, which Inductor captures, or, `captured`, the service.
    `freezes`: the weights are constants of what is compiled, which keeps its own packed copy of them.
    """

    name: str
    compile: CompileOptions | None = None
    reason: str | None = None
    graph_replay: bool = False
    captured: bool = False
    freezes: bool = False
    package: InductorOptions | None = None

    @property
    def compiles(self) -> bool:
        """Whether a compiler makes the step, so that its kernels are fused."""
        return self.compile is not None or self.package is not None

    @property
    def is_one_graph(self) -> bool:
        """Whether `torch.compile` is to raise where the model breaks the graph."""
        return bool((self.compile or {}).get("fullgraph", False))

    @property
    def cpp_wrapper(self) -> bool:
        """Whether `torch.compile` has what calls its kernels generated in C++, not in Python."""
        return bool((self.compile or {}).get("options", {}).get("cpp_wrapper", False))

    @property
    def with_breaks(self) -> Effect:
        """The same of a model that no single graph holds: its compiler may leave the graph."""
        return replace(self, compile={**self.compile, "fullgraph": False}) if self.compile else self

    def in_pytorch(self, grad_mode: GradMode) -> str:
        """The PyTorch that does the same in a program of one's own, a line per statement.

        `model` is the reader's module, `x` its input; the result is `output`.
        """
        if self.package is not None:
            return (
                # Where grad mode is on, nothing is frozen.
                "from torch._inductor import aoti_compile_and_package, aoti_load_package\n"
                "with torch.no_grad():\n"
                "    program = torch.export.export(model, (x,))\n"
                f"    options = {self.package!r}\n"
                "    path = aoti_compile_and_package(program, inductor_configs=options)\n"
                # Called itself, a package takes the trees of its arguments apart each time: 7 µs and more.
                "    package = aoti_load_package(path).loader\n"
                "    output = package.boxed_run([x])[0]"
            )
        contexts = [] if grad_mode == "enabled" else [f"torch.{grad_mode}()"]
        freezing = ["torch._inductor.config.patch(freezing=True)"] if self.freezes else []
        made, call = [], "model(x)"
        if self.compile is not None:
            given = ", ".join(f"{name}={value!r}" for name, value in self.compile.items())
            # Of the module itself torch makes a module, whose call passes nn.Module's: 18 µs more on Zen 3.
            made, call = [f"step = torch.compile(lambda x: model(x), {given})"], "step(x)"
        first = _within([*contexts, *freezing], f"output = {call}")
        if not self.captured:
            return "\n".join([*made, first])
        capture = "torch.cuda.graph(graph := torch.cuda.CUDAGraph())"
        # What compiles or allocates at the first call cannot be captured.
        second = _within([*contexts, capture], f"output = {call}")
        return "\n".join([*made, first, second, "graph.replay()"])

    @property
    def by_operator(self) -> bool:
        """Whether the host issues the step operator by operator."""
        return not self.compiles and not self.captured

    @property
    def without_replay(self) -> str:
        """The effective name of a step whose graph was skipped: its kernels were launched one by one."""
        return "compiled" if self.compiles else "inference_mode"


@dataclass(frozen=True, slots=True)
class Mode:
    """One mode: how grad mode is set, how it is compiled per device, and what the mode removes.

    `default`: served and swept unless other modes are named; `swept`: the devices on which it is swept only,
    by a service of its own, because it can win there and is ready in time.
    """

    name: str
    grad_mode: GradMode
    removes: str
    cuda: Effect
    cpu: Effect
    default: bool = True
    swept: tuple[str, ...] = ()

    def effect(self, device_type: str) -> Effect:
        """What this row does on `device_type` ('cpu' or 'cuda')."""
        return self.cuda if device_type == "cuda" else self.cpu

    def with_breaks(self) -> Mode:
        """This row for a model that cannot be compiled as one graph."""
        return replace(self, cuda=self.cuda.with_breaks, cpu=self.cpu.with_breaks)


def _plain(name: str, grad_mode: GradMode, removes: str) -> Mode:
    return Mode(name, grad_mode, removes, cuda=Effect(name), cpu=Effect(name))


PLAIN_INDUCTOR: InductorOptions = {
    "cpp_wrapper": False,
    "freezing": False,
    "max_autotune": False,
    "max_autotune_pointwise": False,
    "max_autotune_gemm": False,
    "coordinate_descent_tuning": False,
    "triton.cudagraphs": False,
    "memory_planning": False,
    "use_fast_math": False,
    "cpp.dynamic_threads": False,
    "cpp.enable_kernel_profile": False,
}
"""What every row compiles with except where it says otherwise: torch's own defaults can be set outside."""

PLAIN_DYNAMO: dict[str, Any] = {
    "suppress_errors": False,
    "caching_precompile": False,
    "debug_backend_override": "",
    "debug_inductor_config_override": "",
    "debug_dynamo_config_override": "",
}
"""The same of `torch._dynamo.config`, as far as this torch has it."""

_FULL: CompileOptions = {"fullgraph": True, "dynamic": False}

_TUNED: InductorOptions = {"freezing": True, "max_autotune": True, "max_autotune_gemm_backends": "CPP,ATEN"}
"""On a CPU: weights packed once, products by the faster of Inductor's own templates and library kernels."""

LADDER: tuple[Mode, ...] = (
    _plain("eager", "enabled", "nothing: every operator records a tape node and saves tensors"),
    _plain("no_grad", "no_grad", "tape recording; operators still pass the autograd dispatch keys"),
    _plain("inference_mode", "inference_mode", "the autograd dispatch layer, AutogradMeta, version counters"),
    Mode(
        "compiled", "inference_mode", "Python and dispatcher per operator; kernels are fused",
        cuda=Effect("compiled", _FULL), cpu=Effect("compiled", _FULL),
    ),
    Mode(
        "reduce-overhead", "inference_mode", "launches: one CUDA-graph replay per step",
        cuda=Effect("reduce-overhead", {**_FULL, "mode": "reduce-overhead"}, graph_replay=True),
        cpu=Effect(
            "compiled-cpp", {**_FULL, "options": {"cpp_wrapper": True}},
            reason="a CPU has no CUDA graphs; compiled with Inductor's C++ wrapper instead",
        ),
    ),
    Mode(
        "cuda-graph", "inference_mode", "launches: one replay of the operators of inference_mode, none fused",
        cuda=Effect("cuda-graph", graph_replay=True, captured=True),
        cpu=Effect(
            "inference_mode", reason="a CPU has no CUDA graphs; the same operators run as in inference_mode"
        ),
        default=False,
    ),
    Mode(
        "compiled-captured", "inference_mode", "guards and graph trees: one replay of what compiled runs",
        cuda=Effect("compiled-captured", _FULL, graph_replay=True, captured=True),
        cpu=Effect("compiled", _FULL, reason="a CPU has no CUDA graphs; the same code runs as in compiled"),
        default=False, swept=("cuda",),
    ),
    Mode(
        "max-autotune", "inference_mode", "untuned kernels: products are tuned when compiled, weights packed",
        cuda=Effect(
            "max-autotune", {**_FULL, "mode": "max-autotune-no-cudagraphs"}, graph_replay=True, captured=True
        ),
        cpu=Effect("max-autotune", {**_FULL, "options": {**_TUNED, "cpp_wrapper": True}}, freezes=True),
        default=False,
    ),
    Mode(
        "aot-inductor", "inference_mode", "Python: guards and wrapper; a package compiled ahead of time runs",
        cuda=Effect("aot-inductor", package={"max_autotune": True}),
        cpu=Effect("aot-inductor", package=_TUNED, freezes=True),
        default=False, swept=("cpu",),
    ),
)  # fmt: skip

MODES: dict[str, Mode] = {mode.name: mode for mode in LADDER}
"""The ladder by name, in its order."""

ALL_MODES = "all"
"""Stands for every mode of the ladder, where modes are named."""

AUTO = "auto"
"""Has the service choose a mode for each request: an endpoint, not a row, and not among `ALL_MODES`."""

FALLBACK = "fallback"
"""Under which requests are counted that ran as another form than their mode had declared."""


def default_modes() -> list[str]:
    """The modes that are served where none are named, in the ladder's order."""
    return [name for name, mode in MODES.items() if mode.default]


def swept_modes(device_type: str) -> list[str]:
    """The modes of a sweep's own service where none are named: the default ones, and each that can win."""
    return [name for name, mode in MODES.items() if mode.default or device_type in mode.swept]


def doubles(names: Iterable[str], device_type: str) -> dict[str, str]:
    """Those of `names` that by the ladder run as another one of them on `device_type`, with its name."""
    effective = {name: MODES[name].effect(device_type).name for name in names if name in MODES}
    return {name: other for name, other in effective.items() if name != other and other in effective}


def asked_modes(names: Iterable[str]) -> list[str]:
    """`names` in their order, each once, then what ALL_MODES adds. Raises ValueError, which lists the valid
    ones.
    """
    chosen = dict.fromkeys(names)
    if unknown := sorted(chosen.keys() - {*MODES, ALL_MODES}):
        raise ValueError(f"unknown mode {', '.join(unknown)}; try some of {', '.join(MODES)}, or {ALL_MODES}")
    everything = MODES if ALL_MODES in chosen else ()
    return [name for name in dict.fromkeys([*chosen, *everything]) if name != ALL_MODES]


def named_modes(names: Iterable[str]) -> list[str]:
    """The same in the ladder's order."""
    chosen = asked_modes(names)
    return [name for name in MODES if name in chosen]
