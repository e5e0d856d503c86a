"""Requests through the service's own code over the same ones in a minimal loop without meters, by mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter_ns

import msgspec
import torch

from models.opening import open_tokenizer
from service.measure.cases import Bench
from service.measure.rounds import Log, in_rounds, paired_median_ratio
from service.measure.variants import Variants
from service.protocol.messages import Phase
from service.selftest.check import Check
from service.selftest.checks import NEW_TOKENS, PROMPT
from service.selftest.request_path import BUCKET, RequestPath
from service.selftest.results import CheckResult, interval_result
from service.step.callables import Step

ROUNDS = 120
UNCOUNTED = 2
MOST_RATIO = 1.03
NAME = "the service's code / a minimal loop, whole request"
BOUND = f"≤ {MOST_RATIO}"

Arm = tuple[str, str]
"""Mode, and `service` or `minimal`."""


def _as_it_is(step: Step, phase: Phase) -> Step:
    return step


class MinimalLoop:
    """What one writes around a step to generate greedily: no clock, no deadline, no streaming, no records.

    On the same steps and static buffers as the engine's generation, with the same text as its result.
    `around` may put something of a check around its steps.
    """

    def __init__(self, bench: Bench, mode: str, around: Callable[[Step, Phase], Step] = _as_it_is) -> None:
        self._prefill = around(bench.case(mode, BUCKET, "prefill").step, "prefill")
        self._decode = around(bench.case(mode, BUCKET, "decode").step, "decode")
        self._buffers = bench.buffers[BUCKET]
        self._tokenizer = open_tokenizer(bench.settings.model, bench.model.config.vocabulary)

    def run(self, new_tokens: int = NEW_TOKENS) -> str:
        """The text of one request of one prompt."""
        buffers = self._buffers
        prompt = self._tokenizer.encode(PROMPT)
        used = len(prompt)
        length = buffers.padded(used)
        arguments = buffers.arguments("prefill", length)
        arguments[0].copy_(torch.tensor([prompt + [0] * (length - used)]))
        buffers.positions.zero_()
        buffers.last.fill_(used - 1)
        _, token = self._prefill(*arguments)
        buffers.positions.fill_(used)
        buffers.last.zero_()
        tokens = [int(token)]
        while len(tokens) < new_tokens:
            used += 1
            buffers.token_row.copy_(token)
            _, token = self._decode(*buffers.arguments("decode", reach=buffers.reach(used)))
            buffers.positions.add_(buffers.one)
            tokens.append(int(token))
        return self._tokenizer.decode(tokens)


def measure_minimal_loop(variants: Variants, log: Log) -> dict[Arm, list[float]]:
    """Seconds per request by mode, through the service's code and in the minimal loop, which take turns.

    Raises RuntimeError where the two differ in a text.
    """
    bench = Bench(msgspec.structs.replace(variants.settings, batch_sizes=[BUCKET], context=None))
    with TemporaryDirectory(prefix="launchbound-") as folder, variants.isolated():
        arms: dict[Arm, Callable[[], float]] = {}
        for mode in variants.modes:
            log(f"warming {mode}")
            path = RequestPath(bench, mode, Path(folder))
            loop = MinimalLoop(bench, mode)
            served, alone = path.measured().outcome.outputs[0].text, loop.run()
            if served != alone:
                raise RuntimeError(
                    f"{mode} gives {served!r} in the engine's loop and {alone!r} in a minimal one"
                )
            arms[mode, "service"] = partial(_seconds, path.measured)
            arms[mode, "minimal"] = partial(_seconds, loop.run)
        in_rounds(arms, UNCOUNTED, "minimal-loop uncounted", log)
        return in_rounds(arms, ROUNDS, "minimal-loop", log)


def _seconds(request: Callable[[], object]) -> float:
    began = perf_counter_ns()
    request()
    return (perf_counter_ns() - began) / 1e9


def judge_minimal_loop(found: Mapping[Arm, list[float]]) -> list[CheckResult]:
    """A row per mode, paired by round."""
    rows = []
    for mode in dict.fromkeys(mode for mode, _ in found):
        service, minimal = found[mode, "service"], found[mode, "minimal"]
        added = median(a - b for a, b in zip(service, minimal, strict=True))
        rows.append(
            interval_result(
                f"{NAME}, {mode}",
                BOUND,
                paired_median_ratio(service, minimal),
                most=MOST_RATIO,
                note=f"{added * 1e6:.0f} µs of requests of {median(minimal) * 1e3:.1f} ms",
                numbers={"service_seconds": service, "minimal_seconds": minimal},
            )
        )
    return rows


MINIMAL_LOOP = Check(measure_minimal_loop, judge_minimal_loop)
