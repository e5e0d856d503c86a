"""The sections of each part, by what they decide: first results are on disk within a minute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TOTAL_SECONDS = 480.0
"""Of one part, all sections together: a GPU is lent for minutes. The limits of a part sum up to no more."""


@dataclass(frozen=True, slots=True)
class Section:
    """`command` are arguments of the interpreter; `seconds` is its limit, `about` what it finds out.

    It has longer where those before it left some of theirs. `writes_rows` False: its output is its result,
    in NAME.out.
    """

    name: str
    seconds: float
    about: str
    command: tuple[str, ...]
    writes_rows: bool = True


def _module(name: str, *arguments: str) -> tuple[str, ...]:
    return ("-m", f"service.gpu_check.sections.{name}", *arguments)


def _verb(name: str, seconds: float, about: str, *arguments: str) -> Section:
    return Section(name, seconds, about, ("launchbound.py", *arguments), writes_rows=False)


FIRST: tuple[Section, ...] = (
    Section("device", 25, "versions, clocks, attention's backend, copy bandwidth", _module("device")),
    Section("profiler", 55, "kernels by id, by window and by queued replays", _module("profiler")),
    Section("ladder", 165, "default modes and cuda-graph, bfloat16", _module("ladder", "bfloat16")),
    Section("float32", 85, "parity in float32", _module("ladder", "float32")),
    Section("tests", 150, "tests/gpu", _module("gpu_tests")),
)
"""`make gpu-check`: all that decides whether the CUDA path works."""


def second() -> tuple[Section, ...]:
    """`make gpu-check PART=2`: larger models, a profiler that lets go, and the studies."""
    study = ("--device", "cuda", "--json")
    timeline = ("--timeline", "--mode", "eager", "--against", "reduce-overhead")
    return (
        Section("teardown", 60, "a profiler that lets go after each session", _module("teardown")),
        Section("sizes", 150, "small and base at batch 1, 32, 128", _module("sizes")),
        _verb("timeline", 60, "one step of eager over one of reduce-overhead", "anatomy", *timeline, *study),
        _verb("layers", 60, "what each layer of PyTorch takes", "anatomy", "--layers", *study),
        _verb("budget", 90, "dispatch, kernels and roofline by batch", "anatomy", "--budget", *study),
        _verb("kernels", 60, "the kernels of a step", "anatomy", "--mode", "reduce-overhead", *study),
    )


def third(folder: str) -> tuple[Section, ...]:
    """`make gpu-check PART=3`, into `folder`: the selftest's rows for CUDA, and a sweep."""
    selftest = ("selftest", "--only", "cuda,instrumentation", "--device", "cuda")
    sweep = ("sweep", "--preset", "quick", "--device", "cuda")
    return (
        _verb("selftest", 130, "the selftest's rows for CUDA", *selftest, "--out", f"{folder}/selftest"),
        _verb("sweep", 350, "the quick sweep", *sweep, "--out", f"{folder}/sweep"),
    )


def parts(folder: str) -> dict[int, tuple[Section, ...]]:
    """The sections of every part, by its number."""
    return {1: FIRST, 2: second(), 3: third(folder)}


def limit_seconds(sections: Sequence[Section], place: int, left_seconds: float) -> float:
    """How long the section at `place` may run: its limit, and what is left that no later one is to have."""
    section, *later = sections[place:]
    spare = left_seconds - sum(one.seconds for one in later)
    return min(left_seconds, max(section.seconds, spare))
