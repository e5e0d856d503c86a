"""What `POST /v1/compare` does for any workload: one request in several modes, paired by round."""

from __future__ import annotations

import random
from operator import mul
from statistics import median
from typing import Any, NotRequired, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from service.forward_records import ForwardWork
from service.front.advice import EAGER
from service.front.errors import BadRequest, ModeNotReady
from service.front.request_timing import RequestTiming, known_sum
from service.front.routes.answers import ParityBody, Speedup, reply, speedup
from service.front.routes.engine_call import EngineCall, new_job
from service.front.routes.state import AppState, state_of
from service.records import PhaseTimings
from service.statistics import choice
from service.statistics.choice import BASELINE as PLAIN
from service.workloads import of_job


class ModeResult(TypedDict):
    """One mode of a comparison: medians over its rounds, waiting behind other requests left out.

    Of a module they are of its calls alone, without HTTP. It alone has `parity`, which compares what one of
    them returned with what eager returns on the same inputs.

    On a CPU dispatch and kernel are those medians by the shares of one more run, sampled faster.
    """

    mode: str
    effective: str
    median_seconds: float
    dispatch_seconds: float | None
    dispatch_low_seconds: float | None
    dispatch_high_seconds: float | None
    kernel_seconds: float | None
    samples: int | None
    speedup: Speedup | None
    speedup_without_compiler: Speedup | None
    text_equal: bool | None
    parity: NotRequired[ParityBody]


class CompareAnswer(TypedDict):
    """Answer of compare."""

    batch_size: int
    results: list[ModeResult]


async def compared(
    request: Request,
    received_ns: int,
    batch_size: int,
    asked: list[str] | None,
    repeats: int,
    **fields: Any,  # noqa: ANN401
) -> Response:
    """Run every mode once per round, in a fresh order each round, one after another; `fields` are its job's.

    On a CPU each runs once more before that, sampled faster: its steps say how those of the others split.
    """
    state = state_of(request)
    modes = _modes(state, asked)
    runs: dict[str, list[RequestTiming]] = {mode: [] for mode in modes}
    sampled: dict[str, RequestTiming] = {}
    work: ForwardWork | None = fields.get("forward")
    checked = fields if work is None else {"forward": msgspec.structs.replace(work, compare=True)}
    engine = state.client.engine
    async with EngineCall(state, request.scope, request.receive) as call:

        async def run(mode: str, number: int | str, sample: bool = False) -> RequestTiming:
            name = f"{request.state.request_id}.{number}.{mode}"
            is_first = mode not in sampled and not runs[mode]
            given = checked if is_first else fields
            job = new_job(state, name, received_ns, mode=mode, sample=sample, alone=True, **given)
            timing = await call.result(call.submit(job), job.sent_ns)
            state.observe_soon(timing)
            return timing

        if engine is not None and engine.no_samples is None:
            for mode in modes:
                sampled[mode] = await run(mode, "sample", sample=True)
        for number in range(repeats):
            for mode in random.sample(modes, len(modes)):
                runs[mode].append(await run(mode, number))
    state.observe_all()
    answer: CompareAnswer = {
        "batch_size": batch_size,
        "results": [_result(mode, runs, sampled.get(mode)) for mode in modes],
    }
    return reply(answer)


def _modes(state: AppState, asked: list[str] | None) -> list[str]:
    if asked is None:
        ready = state.client.ready_modes()
        if not ready:
            raise ModeNotReady("no mode is ready yet; /v1/modes shows where each one stands")
        return ready
    for mode in asked:
        state.check_mode(mode)
    if len(set(asked)) < len(asked):
        raise BadRequest("modes: each mode may stand there once", param="modes")
    return asked


def _result(
    mode: str, runs_by_mode: dict[str, list[RequestTiming]], sampled: RequestTiming | None
) -> ModeResult:
    runs, baseline = runs_by_mode[mode], runs_by_mode.get(EAGER)
    shares = None if sampled is None else _shares(sampled)
    dispatch, low, high, kernel = _measured(runs) if shares is None else _by_shares(runs, shares)
    parity = (sampled or runs[0]).outcome.parity
    counted = None
    if sampled is not None and shares is not None:
        counted = sum((each.kernel_samples or 0) + (each.host_samples or 0) for each in _phases(sampled))
    result: ModeResult = {
        "mode": mode,
        "effective": runs[-1].outcome.effective,
        "median_seconds": median([run.compared_seconds for run in runs]),
        "dispatch_seconds": dispatch,
        "dispatch_low_seconds": low,
        "dispatch_high_seconds": high,
        "kernel_seconds": kernel,
        "samples": counted,
        "speedup": _speedup(mode, EAGER, runs_by_mode),
        "speedup_without_compiler": _speedup(mode, PLAIN, runs_by_mode),
        "text_equal": _texts(runs) == _texts(baseline) if baseline and baseline[0].outcome.outputs else None,
    }
    if parity is not None:
        result["parity"] = cast(ParityBody, msgspec.structs.asdict(parity))
    return result


def _measured(runs: list[RequestTiming]) -> list[float | None]:
    """Median dispatch of a run with its ends, and kernel, as each run has them; None: not known."""
    fields = ("dispatch_seconds", "dispatch_low_seconds", "dispatch_high_seconds", "kernel_seconds")
    ran = [[phase for phase in _phases(run) if phase.steps] for run in runs]
    of_runs = ([known_sum([getattr(phase, name) for phase in phases]) for phases in ran] for name in fields)
    return [_median(values) for values in of_runs]


def _by_shares(runs: list[RequestTiming], shares: list[tuple[float, float, float]]) -> list[float]:
    """The same by the shares of dispatch in each phase, and their ends."""
    walls = [[phase.wall_seconds or 0.0 for phase in _phases(run)] for run in runs]
    ends = [[sum(map(mul, of_run, share)) for of_run in walls] for share in zip(*shares, strict=True)]
    kernel = [sum(of_run) - dispatch for of_run, dispatch in zip(walls, ends[0], strict=True)]
    return [median(seconds) for seconds in (*ends, kernel)]


def _shares(sampled: RequestTiming) -> list[tuple[float, float, float]] | None:
    """Of dispatch in each phase, with its ends; None where one that ran has no sample."""
    found = []
    for phase in _phases(sampled):
        if phase.steps and not (phase.kernel_samples or phase.host_samples):
            return None
        ends = (phase.dispatch_seconds, phase.dispatch_low_seconds, phase.dispatch_high_seconds)
        wall = phase.wall_seconds or 1.0  # of a phase without steps, whose dispatch is 0
        value, low, high = ((seconds or 0.0) / wall for seconds in ends)
        found.append((value, low, high))
    return found


def _phases(run: RequestTiming) -> list[PhaseTimings]:
    return [getattr(run.engine, phase) for phase in of_job(run.job).phases]


def _speedup(mode: str, vs: str, runs: dict[str, list[RequestTiming]]) -> Speedup | None:
    """Of `mode` over `vs`, paired by round; None for `vs` itself, or where it did not run."""
    if mode == vs or vs not in runs:
        return None
    baseline, own = (dict(enumerate(run.compared_seconds for run in runs[name])) for name in (vs, mode))
    return speedup(choice.compare(baseline, own).speedup, vs)


def _median(values: list[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return median(measured) if measured else None


def _texts(runs: list[RequestTiming]) -> list[list[str]]:
    return [[output.text for output in run.outcome.outputs] for run in runs]
