"""The sections of both parts, in the order of what they tell: first results are on disk within a minute."""

from __future__ import annotations

from dataclasses import dataclass

TOTAL_SECONDS = 570.0
"""Of one part, all sections together; what comes after it is not begun."""


@dataclass(frozen=True, slots=True)
class Section:
    """`command` are arguments of the interpreter; `seconds` is its limit, `about` what it finds out.

    `writes_rows` False: its output is its result, in NAME.out.
    """

    name: str
    seconds: float
    about: str
    command: tuple[str, ...]
    writes_rows: bool = True


def _module(name: str, *arguments: str) -> tuple[str, ...]:
    return ("-m", f"service.gpu_check.sections.{name}", *arguments)


def _launchbound(*arguments: str) -> tuple[str, ...]:
    return ("launchbound.py", *arguments)


FIRST: tuple[Section, ...] = (
    Section("device", 60, "versions, clocks, attention's backend, copy bandwidth", _module("device")),
    Section("profiler", 120, "kernels by id, by window and by queued replays", _module("profiler")),
    Section("tests", 150, "tests/gpu", _module("gpu_tests")),
    Section("ladder", 220, "default modes and cuda-graph, bfloat16", _module("ladder", "bfloat16")),
    Section("sizes", 220, "small and base at batch 1, 32, 128", _module("sizes")),
    Section("float32", 120, "parity in float32", _module("ladder", "float32")),
)
"""`make gpu-check`."""


def second(folder: str) -> tuple[Section, ...]:
    """`make gpu-check PART=2`, for what writes files into `folder`."""
    study = ("--device", "cuda", "--json")
    timeline = ("--timeline", "--mode", "eager", "--against", "reduce-overhead")
    commands: tuple[tuple[str, float, str, tuple[str, ...]], ...] = (
        ("selftest", 120, "the selftest's rows for CUDA",
         ("selftest", "--only", "cuda,instrumentation", "--device", "cuda", "--out", f"{folder}/selftest")),
        ("sweep", 330, "the quick sweep",
         ("sweep", "--preset", "quick", "--device", "cuda", "--out", f"{folder}/sweep")),
        ("timeline", 60, "one step of eager over one of reduce-overhead", ("anatomy", *timeline, *study)),
        ("layers", 60, "what each layer of PyTorch takes", ("anatomy", "--layers", *study)),
        ("budget", 90, "dispatch, kernels and roofline by batch", ("anatomy", "--budget", *study)),
        ("kernels", 60, "the kernels of a step", ("anatomy", "--mode", "reduce-overhead", *study)),
    )  # fmt: skip
    teardown = Section("teardown", 60, "a profiler that lets go after each session", _module("teardown"))
    return (
        *(
            Section(name, seconds, about, _launchbound(*arguments), writes_rows=False)
            for name, seconds, about, arguments in commands
        ),
        teardown,
    )
