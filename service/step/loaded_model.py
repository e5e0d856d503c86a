"""The served model as every process loads it: on its device, in its precision, linear weights laid out."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import geometric_mean, median
from time import perf_counter_ns
from typing import get_args

import torch
from torch import Tensor, nn
from torch._dynamo import config as dynamo_config
from torch.nn import functional as F

from models.opening import Opened, resolve
from models.served import Layout, Served, laid_out, lay_out, linears
from models.workload import UserModule
from models.workload import load_module as load_user_module
from service.machine import engine_cpus, physical_cores
from service.records import EngineSettings, LinearLayout
from service.step.compile_cache import compile_cache, keep_record, read_record, record_file
from service.step.device import choose_device, device_name


@dataclass(frozen=True, slots=True)
class Precision:
    """One way to compute. `cache` is also the dtype of the rotary table, so that keys come out in it."""

    name: str
    weights: torch.dtype
    cache: torch.dtype
    autocast: torch.dtype | None = None


PRECISIONS: dict[str, Precision] = {
    precision.name: precision
    for precision in (
        Precision("float32", torch.float32, torch.float32),
        Precision("bfloat16", torch.bfloat16, torch.bfloat16),
        Precision("autocast-bfloat16", torch.float32, torch.bfloat16, torch.bfloat16),
    )
}


def choose_precision(requested: str | None, device: torch.device) -> Precision:
    """The precision called `requested`; None: bfloat16 on CUDA, float32 on a CPU. Raises ValueError."""
    name = requested or ("bfloat16" if device.type == "cuda" else "float32")
    if name not in PRECISIONS:
        raise ValueError(f"dtype '{name}': try one of {', '.join(PRECISIONS)}")
    return PRECISIONS[name]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """`model` and what it was loaded with; it has `parameters` weights, tied ones counted once.

    `opened` is what its name stands for.
    """

    device: torch.device
    precision: Precision
    cpus: list[int]
    model: Served
    opened: Opened
    parameters: int
    linears: LinearLayout

    @property
    def content_hash(self) -> str:
        return self.opened.content_hash


@dataclass(frozen=True, slots=True)
class LoadedModule:
    """As `LoadedModel`, of a user's module, whose weights lie as they are: `linears` is None."""

    device: torch.device
    precision: Precision
    cpus: list[int]
    user: UserModule
    parameters: int
    linears: None = None

    @property
    def content_hash(self) -> str:
        return self.user.content_hash


def prepare_device(settings: EngineSettings) -> tuple[torch.device, Precision, list[int]]:
    """Device, precision and cores of `settings`; sets the number of threads and the current GPU of this
    process. Raises ValueError, with the remedy, for what cannot work.
    """
    device = choose_device(settings.device)
    if device.index is not None:
        # Streams, events, graphs and pinned memory are of the current device, whatever device a tensor is on.
        torch.cuda.set_device(device)
    precision = choose_precision(settings.dtype, device)
    cpus = engine_cpus(settings.cpus)
    torch.set_num_threads(settings.threads or physical_cores(cpus))
    return device, precision, cpus


ENTRIES = 32
"""Compiled forms that one function of a module may have for each mode and batch size; torch's own limit of 8
is for all together.
"""


def load_module(settings: EngineSettings) -> LoadedModule:
    """Load the user's module that `settings` names. Raises ValueError, with the remedy, as `prepare_device`
    does, for a setting of language models, and where the user's code cannot work.
    """
    for name, chosen, usual in (
        ("LINEARS", settings.linears, "aten"),
        ("BATCHING", settings.batching, "off"),
        ("CONTEXT", settings.context, None),
    ):
        if chosen != usual:
            raise ValueError(
                f"{name.lower()} {chosen} is for language models, and {settings.model} is a module: "
                f"start without LAUNCHBOUND_{name}"
            )
    device, precision, cpus = prepare_device(settings)
    # Where a mode breaks the graph, what is compiled lies on the user's own functions, which all modes and
    # batch sizes share. Beyond the limit torch runs them eagerly, and only warns.
    limit = ENTRIES * len(settings.modes) * len(settings.batch_sizes)
    dynamo_config.recompile_limit = limit
    dynamo_config.accumulated_recompile_limit = 4 * limit
    user = load_user_module(settings.model, device, precision.weights)
    parameters = sum(p.numel() for p in user.module.parameters())
    return LoadedModule(device, precision, cpus, user, parameters)


def load_model(settings: EngineSettings) -> LoadedModel:
    """Load the language model of `settings`. Raises ValueError, with the remedy, as `prepare_device` does,
    and for a checkpoint that cannot work.
    """
    device, precision, cpus = prepare_device(settings)
    opened = resolve(settings.model)
    model = opened.model(
        max(settings.batch_sizes),
        device,
        precision.weights,
        precision.cache,
        settings.context,
        settings.prefill_chunk,
    )
    parameters = sum(p.numel() for p in model.parameters())
    key = f"{opened.content_hash} {precision.name} {torch.get_num_threads()} {device_name(device)}"
    casts = precision.autocast is not None
    linears = apply_layout(model, settings.linears, settings.cache_folder, key, casts)
    return LoadedModel(device, precision, cpus, model, opened, parameters, linears)


LAYOUTS: tuple[Layout, ...] = get_args(Layout)

ROWS = (1, 4, 16)
"""Rows of the products that are timed: those of decode steps. Always these, so that the choice does not
depend on the batch sizes of a process."""

GAIN = 1.05
"""How many times as fast as `aten` another layout must be, over all of ROWS."""

ROUNDS, FEWEST_ROUNDS, LIMIT_SECONDS = 15, 3, 1.0
SAMPLE_SECONDS = 1e-4
"""Least time of one sample, so that the clock does not matter."""

GROUP_BYTES = 32 * 2**20
"""Weights of one shape that are timed in turn, at least one: in no nearer cache than in a step."""


def apply_layout(
    model: nn.Module, requested: str, cache_folder: str, key: str, casts: bool = False
) -> LinearLayout:
    """Lay out the linear weights of `model` as `requested`, `auto` or a layout by name; says what was done.

    `auto` is timed once per `key`, which names the model, its dtype, the threads and the machine, and is kept
    in `cache_folder`. `casts`: each call casts the weights first, as autocast does, so that their layout does
    not matter. Raises ValueError for an unknown layout.
    """
    on_cpu = next(model.parameters()).device.type == "cpu"
    if requested != "auto":
        chosen = LinearLayout(layout=requested, reason="requested")
    elif not on_cpu or casts:
        reason = "autocast casts the weights at each call" if on_cpu else "chosen by timing on CPUs only"
        chosen = LinearLayout(layout="aten", reason=reason)
    else:
        file = record_file(compile_cache(cache_folder), key, "linears")
        kept = read_record(file, LinearLayout)
        chosen = kept or choose(step_seconds(model))
        if kept is None:
            keep_record(file, chosen)
    known: dict[str, Layout] = {layout: layout for layout in LAYOUTS}
    if chosen.layout not in known:
        raise ValueError(f"linears '{chosen.layout}': try one of auto, {', '.join(LAYOUTS)}")
    lay_out(model, known[chosen.layout])
    return chosen


def choose(seconds: dict[str, dict[int, float]]) -> LinearLayout:
    """The fastest layout by `seconds`, by layout and rows; `aten` unless another gains more than GAIN."""
    ratios = {
        layout: geometric_mean([seconds["aten"][rows] / own[rows] for rows in own])
        for layout, own in seconds.items()
    }
    best = max(ratios, key=lambda layout: ratios[layout])
    if best == "aten" or ratios[best] < GAIN:
        others = ", ".join(f"{layout} {ratio:.2f}×" for layout, ratio in ratios.items() if layout != "aten")
        best, reason = "aten", f"no other layout is {GAIN:g}× as fast: {others}"
    else:
        by_rows = ", ".join(f"{base / seconds[best][n]:.2f}× at {n}" for n, base in seconds["aten"].items())
        reason = f"{ratios[best]:.2f}× as fast as aten over rows ({by_rows})"
    return LinearLayout(layout=best, reason=reason, step_seconds=seconds)


@torch.inference_mode()
def step_seconds(model: nn.Module) -> dict[str, dict[int, float]]:
    """Seconds of all linear layers of `model` in one decode step, by layout and rows. Each distinct shape is
    timed on weights of the model itself, layouts in turn, and counted as often as the model has it.
    """
    groups: dict[torch.Size, list[Tensor]] = defaultdict(list)
    for linear in linears(model):
        groups[linear.weight.shape].append(linear.weight)
    cases = []
    for weights in groups.values():
        few = weights[: max(1, GROUP_BYTES // (weights[0].numel() * weights[0].element_size()))]
        copies = {layout: [laid_out(weight, layout) for weight in few] for layout in LAYOUTS}
        for rows in ROWS:
            x = torch.randn(rows, weights[0].shape[1], dtype=torch.float32).to(weights[0].dtype)
            cases += [(layout, rows, x, own, len(weights)) for layout, own in copies.items()]
    samples: list[list[float]] = [[] for _ in cases]
    began = perf_counter_ns()
    for number in range(ROUNDS):
        if number >= FEWEST_ROUNDS and perf_counter_ns() - began > LIMIT_SECONDS * 1e9:
            break
        for own_samples, (_, _, x, weights, _) in zip(samples, cases, strict=True):
            own_samples.append(_seconds(x, weights))
    found: dict[str, dict[int, float]] = {layout: dict.fromkeys(ROWS, 0.0) for layout in LAYOUTS}
    for own_samples, (layout, rows, _, _, count) in zip(samples, cases, strict=True):
        found[layout][rows] += count * median(own_samples)
    return found


def _seconds(x: Tensor, weights: list[Tensor]) -> float:
    """Seconds of one product of `x` with one of `weights`, after an untimed pass over them."""
    for weight in weights:
        F.linear(x, weight)
    passes = 0
    began = ended = perf_counter_ns()
    while ended - began < SAMPLE_SECONDS * 1e9:
        for weight in weights:
            F.linear(x, weight)
        passes += 1
        ended = perf_counter_ns()
    return (ended - began) / 1e9 / (passes * len(weights))
