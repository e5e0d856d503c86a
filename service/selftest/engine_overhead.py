"""What an engine does for one job outside its steps, measured without a front: a piece of `other`."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from threading import Thread
from time import perf_counter_ns

import msgspec
import torch
import zmq

from service.engine.inbox import Inbox
from service.engine.local_inbox import local_job
from service.engine.loop import Engine
from service.measure.rounds import Say
from service.measure.variants import Lab
from service.protocol.messages import Job, Outcome, Stop, ToFront
from service.protocol.status import EngineStatus
from service.selftest.workload import NEW_TOKENS, PROMPT

JOBS = 20
UNCOUNTED = 2


def engine_seconds(lab: Lab, say: Say) -> dict[str, float]:
    """Median seconds by mode between a job taken and done that are neither steps nor tokenising.

    The engine runs here, with its real inbox; at the other end a thread sends one job after another.
    """
    settings = msgspec.structs.replace(lab.settings, batch_sizes=[1], profile_every=0, instrumentation="full")
    jobs = [
        local_job(f"rest-{number}-{mode}", mode, [PROMPT], NEW_TOKENS, ignore_eos=True)
        for number in range(JOBS)
        for mode in lab.modes
    ]
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="launchbound-") as folder, zmq.Context() as context:
        address = f"ipc://{Path(folder) / 'border.sock'}"
        front = context.socket(zmq.PAIR)
        front.bind(address)
        thread = Thread(target=_ask, args=(front, jobs, outcomes, say))
        inbox = Inbox(address)
        thread.start()
        try:
            with lab.settled():
                Engine(settings, inbox).run()
        finally:
            torch.compiler.set_stance("default")
            inbox.close()
            thread.join()
            front.close(linger=0)
    found: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes[UNCOUNTED * len(lab.modes) :]:
        found[outcome.mode].append(_rest(outcome))
    return {mode: median(values) for mode, values in found.items()}


def _ask(front: zmq.Socket[bytes], jobs: list[Job], outcomes: list[Outcome], say: Say) -> None:
    """Wait until the engine is warm, have every job run, and tell it to stop."""
    decode, encode = msgspec.msgpack.Decoder(ToFront).decode, msgspec.msgpack.Encoder().encode
    waiting = list(jobs)
    while len(outcomes) < len(jobs):
        message = decode(front.recv())
        say(f"an engine without a front, job {len(outcomes)} of {len(jobs)}")
        if isinstance(message, Outcome):
            outcomes.append(message)
        if (isinstance(message, EngineStatus) and message.warm) or (isinstance(message, Outcome) and waiting):
            front.send(encode(msgspec.structs.replace(waiting.pop(0), sent_ns=perf_counter_ns())))
    front.send(encode(Stop()))


def _rest(outcome: Outcome) -> float:
    timings = outcome.timings
    if timings is None:
        raise RuntimeError(f"job {outcome.id} did not run: {outcome.problem}")
    walls = (timings.prefill.wall_seconds or 0.0) + (timings.decode.wall_seconds or 0.0)
    return (timings.done_ns - timings.taken_ns) / 1e9 - walls - timings.tokenise_seconds
