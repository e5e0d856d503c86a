"""Study of instructions: what a step of each mode executes, counted one by one and classed as samples are."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec
import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from service.anatomy.common import Report, StudyError, resolve_bucket, resolve_modes, table
from service.measure.cases import Bench, Case
from service.measure.cpu_sampler import Place
from service.measure.single_step import InstructionCounter, Instructions, SingleStepError
from service.measure.symbols import rule_of
from service.modes import MODES
from service.records import Phase, Side

FUNCTIONS_SHOWN = 40
SYMBOL_CHARACTERS = 160


class InstructionsArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`mode` None is every configured one.

    The step is of a model of so many `layers` and few words, because an instruction takes some 15 µs; with as
    many layers as the served model has it is that model's own, all its words included.
    """

    mode: str | None = None
    batch_size: int = 1
    phase: Phase = "decode"
    layers: int = 1


class PartOfStep(msgspec.Struct, frozen=True, kw_only=True):
    """Instructions of one part of the stack; those in kernels by the rule that classes them."""

    side: Side
    part: str
    instructions: int


class CountedFunction(msgspec.Struct, frozen=True, kw_only=True):
    """Instructions of one function of `binary`, called from wherever."""

    side: Side
    part: str
    symbol: str
    binary: str
    instructions: int


class InstructionsOfStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of `mode`: all instructions by side and by part, and the functions with the most of them."""

    mode: str
    effective: str
    host: int
    kernel: int
    unclassified: int
    parts: list[PartOfStep]
    functions: list[CountedFunction]


class InstructionsFinding(msgspec.Struct, frozen=True, kw_only=True):
    """`layers` of the `served_layers` were counted. Exact for this build and instruction set, at any load."""

    device: str
    batch_bucket: int
    phase: Phase
    layers: int
    served_layers: int
    steps: list[InstructionsOfStep]


def count_instructions(bench: Bench, arguments: InstructionsArguments, report: Report) -> InstructionsFinding:
    """Count one step of each mode. Raises StudyError for what cannot work here."""
    if bench.device.type != "cpu":
        message = "on CUDA kernels are no instructions of the host: try the timeline"
        raise StudyError("unsupported_here", message)
    if torch.get_num_threads() > 1:
        message = "instructions of one thread are counted: set LAUNCHBOUND_THREADS=1"
        raise StudyError("unsupported_here", message)
    modes = resolve_modes(bench, arguments.mode)
    bucket = resolve_bucket(bench, arguments.batch_size)
    layers = min(arguments.layers, bench.model.config.layers)
    if layers < 1:
        raise StudyError("invalid_request", f"layers must be at least 1, got {arguments.layers}", "layers")
    steps = []
    try:
        counter = InstructionCounter(Path(bench.settings.cache_folder))
        for number, mode in enumerate(modes):
            report(f"making {mode} ready ({arguments.phase}, batch {bucket})", number, len(modes))
            case = _case(bench, mode, bucket, arguments.phase, layers)
            report(f"one step of {mode}, instruction by instruction", number, len(modes))
            steps.append(_finding(mode, counter.count_settled(case.call)))
    except SingleStepError as error:
        raise StudyError("unsupported_here", str(error)) from None
    return InstructionsFinding(
        device=bench.device.type,
        batch_bucket=bucket,
        phase=arguments.phase,
        layers=layers,
        served_layers=bench.model.config.layers,
        steps=steps,
    )


def _case(bench: Bench, mode: str, bucket: int, phase: Phase, layers: int) -> Case:
    try:
        return bench.shallow_case(mode, bucket, phase, layers)
    except ValueError as error:
        message = f"{error}: set layers to that, which counts the model itself"
        raise StudyError("unsupported_here", message, "layers") from None
    except Exception as error:
        message = f"{mode} does not run here: {type(error).__name__}: {error}"[:2000]
        raise StudyError("mode_failed", message, "mode") from error


def _finding(mode: str, found: Instructions) -> InstructionsOfStep:
    parts: Counter[tuple[Side, str]] = Counter()
    for function, count in found.by_function.items():
        parts[function.side, part_of(function)] += count
    return InstructionsOfStep(
        mode=mode,
        effective=MODES[mode].effect("cpu").name,
        host=found.of("host"),
        kernel=found.of("kernel"),
        unclassified=found.of("unclassified"),
        parts=[
            PartOfStep(side=side, part=part, instructions=count)
            for (side, part), count in parts.most_common()
        ],
        functions=[
            CountedFunction(
                side=function.side,
                part=part_of(function),
                symbol=function.symbol[:SYMBOL_CHARACTERS],
                binary=function.binary.rpartition("/")[2],
                instructions=count,
            )
            for function, count in found.by_function.most_common(FUNCTIONS_SHOWN)
        ],
    )


@dataclass(frozen=True, slots=True)
class Part:
    """Host functions of one kind: `symbol` is searched in the demangled name, `binary` in the file's name."""

    name: str
    symbol: str = ""
    binary: str = ""

    def has(self, function: Place) -> bool:
        """Whether `function` is one of them."""
        file = function.binary.rpartition("/")[2]
        return bool(re.search(self.symbol, function.symbol) and re.search(self.binary, file))


PARTS: tuple[Part, ...] = (
    Part("autograd", symbol=r"\bautograd::|VariableType"),
    Part("Dynamo's guards and frames", symbol=r"\bdynamo(::|_)"),
    Part("Python", binary=r"^(lib)?python|\.cpython-"),
    Part("torch's Python bindings", binary=r"^libtorch_python"),
    Part("dispatcher and operators", binary=r"^(libtorch|libc10)"),
    Part(
        "C and C++ libraries: allocator, locks",
        binary=r"^(libc[.-]|libstdc|libm[.-]|libgcc|ld-|libffi)",
    ),
    Part("generated code", binary=r"\.so"),
)
"""Anything else is `elsewhere`."""


@cache
def part_of(function: Place) -> str:
    """The part that `function` belongs to."""
    if function.side == "kernel":
        return rule_of(function.symbol, function.binary)
    return next((part.name for part in PARTS if part.has(function)), "elsewhere")


FUNCTIONS_PRINTED = 15


def show(finding: InstructionsFinding, console: Console) -> None:
    """Print modes, parts, and the functions of the first mode."""
    first = finding.steps[0]
    functions = (
        (f"{function.instructions:,}", function.side, escape(function.symbol), function.binary)
        for function in first.functions[:FUNCTIONS_PRINTED]
    )
    console.print(_modes(finding))
    console.print("[dim]They are not time: one that waits for memory takes as long as hundreds.[/]")
    title = f"{first.mode}: the functions with the most"
    console.print(_parts(finding), table(title, ("instructions", "side", "function", "of"), functions))


def _modes(finding: InstructionsFinding) -> Table:
    whole = finding.layers == finding.served_layers
    model = "the served model" if whole else f"{finding.layers} of {finding.served_layers} layers, few words"
    first = finding.steps[0]
    numbers = ("host", f"host ÷ {first.mode}", "kernel", f"kernel ÷ {first.mode}", "unclassified")
    rows = (
        (
            step.mode,
            step.effective,
            f"{step.host:,}",
            _ratio(step.host, first.host),
            f"{step.kernel:,}",
            _ratio(step.kernel, first.kernel),
            f"{step.unclassified:,}",
        )
        for step in finding.steps
    )
    title = f"instructions of one {finding.phase} step, batch {finding.batch_bucket}, {model}"
    return table(title, ("mode", "runs as", *numbers), rows, right=numbers)


def _parts(finding: InstructionsFinding) -> Table:
    modes = [step.mode for step in finding.steps]
    found: dict[tuple[Side, str], dict[str, int]] = {}
    for step in finding.steps:
        for part in step.parts:
            found.setdefault((part.side, part.part), {})[step.mode] = part.instructions
    most_first = sorted(found.items(), key=lambda item: (item[0][0], -max(item[1].values())))
    rows = (
        (side, name, *(f"{counts[mode] / 1e3:,.1f}" if mode in counts else "–" for mode in modes))
        for (side, name), counts in most_first
    )
    return table("by part, thousands", ("side", "whose", *modes), rows, right=modes)


def _ratio(count: int, first: int) -> str:
    return f"{count / first:.3f}" if first else "–"
