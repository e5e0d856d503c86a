"""An engine without torch: speaks the protocol's messages, and does as the first prompt commands.

Started as `python fake_engine.py OPTIONS SETTINGS`, both JSON. Options: `device` ("cpu" or "cuda"), `states`
(mode → state at start, else ready), `detail` (why one has failed), `exit` (end at once with this code),
`later_exit` (a code, and a file that marks the first start, that serves), `no_samples` (why its steps are not
sampled), `silent` (announces no mode), `deaf` (ends neither at a Stop nor at SIGTERM), `unconnected` (never
connects), `cold` (never warm), `doing` (what its signs of life say), `prompt_bytes` (its limit), `says` (on
standard error). A prompt that is no command, or token ids,
completes to one word per token. Serving a module, by the model's name, the first text in its inputs is the
command.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any, cast

import msgspec

from models.naming import names_module
from service.forward_records import BatchPlace
from service.frames import connect
from service.modes import MODES
from service.records import (
    SERVING,
    SIDES,
    Cancel,
    Doing,
    EngineSettings,
    EngineStatus,
    Job,
    ModeStatus,
    Outcome,
    OutcomeKind,
    Output,
    Parity,
    Pause,
    Paused,
    Phase,
    PhaseTimings,
    Problem,
    Readiness,
    Resume,
    SampleCounts,
    Source,
    StepProfile,
    StepSplit,
    Stop,
    Timings,
    ToEngine,
    ToFront,
    Token,
)
from service.workloads import FORWARD, GENERATE

REVISION = "0123456789abcdef0123456789abcdef01234567"
STEP_SECONDS = 40e-6
WORK_SECONDS = 0.004
"""How long a job takes at least: more than the timings that the fake claims."""

GB = 2**30
SAMPLES = SampleCounts(kernel=40, host=60, system=3, unclassified=2)
"""Of each step at warm-up, and of a request's own steps."""

PARITY = Parity(
    passed=True, max_abs_logit_difference=1e-6, tolerance=1e-4, positions=8, differing_tokens=0, near_ties=0
)

MEMORY = {
    f"{kind}_{stat}": GB
    for kind in ("allocated", "reserved", "active", "inactive_split")
    for stat in ("current", "peak")
}


class FakeEngine:
    """One process of it."""

    def __init__(self, settings: EngineSettings, options: dict[str, Any]) -> None:
        self.settings, self.options = settings, options
        self.workload = FORWARD if names_module(settings.model) else GENERATE
        self.cuda = options.get("device") == "cuda"
        self.stream = connect(settings.address)
        self.jobs: list[Job | Pause] = []
        self.paused = False
        self.cancelled: list[str] = []
        self.request_ids: dict[str, str] = {}
        self.stopped = False
        self.beat_due = 0.0
        if options.get("deaf"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.served, self.parent = 0, os.getppid()
        self.unsplit, self.halved = False, False
        self.compilations: dict[str, int] = {}
        self.ooms = 0
        self.effective = {mode: self._effective(mode) for mode in settings.modes}

    def run(self) -> None:
        if not self.options.get("silent"):
            for mode in self.settings.modes:
                self.announce(mode, self.options.get("states", {}).get(mode, "ready"))
            self.send(self.status())
        while not self.stopped:
            self.receive(1000)
            while self.jobs and not self.stopped:
                first = self.jobs.pop(0)
                if isinstance(first, Pause):
                    self.pause(first)
                else:
                    self.serve(first)

    def receive(self, milliseconds: int) -> None:
        if os.getppid() != self.parent:
            raise SystemExit("the front has ended")
        if time.monotonic() > self.beat_due:
            self.beat_due = time.monotonic() + 0.5
            self.send(Doing(what=self.options.get("doing", SERVING), limit_seconds=10.0))
        if not self.stream.wait(min(milliseconds, 500)):
            return
        try:
            frames = self.stream.receive()
        except EOFError:
            raise SystemExit("the front has gone") from None
        for frame in frames:
            message = msgspec.msgpack.decode(frame, type=ToEngine)
            if isinstance(message, Job | Pause):
                self.jobs.append(message)
                if isinstance(message, Job):
                    self.request_ids[message.id] = message.request_id
            elif isinstance(message, Resume):
                self.paused = False
                self.jobs = [job for job in self.jobs if isinstance(job, Job)]
            elif isinstance(message, Cancel):
                self.cancelled.append(message.id)
            elif isinstance(message, Stop):
                self.stopped = not self.options.get("deaf")

    def pause(self, message: Pause) -> None:
        """Do nothing until a Resume."""
        self.paused = True
        self.send(Paused(id=message.id))
        while self.paused and not self.stopped:
            self.receive(5)

    def send(self, message: ToFront) -> None:
        self.stream.send(msgspec.msgpack.encode(message))

    def serve(self, job: Job) -> None:
        taken = time.perf_counter_ns()
        self.served += 1
        self.unsplit, self.halved = False, False
        command, _, argument = command_of(job).partition(" ")
        if self.ended(job, command, argument):
            return
        texts = [" ".join(f"w{n}" for n in range(job.max_new_tokens)) for _ in job.prompts]
        effective, reason, profile = self.effective[job.mode], MODES[job.mode].cpu.reason, None
        match command:
            case "!cancelled":
                texts = [",".join(self.request_ids[one] for one in self.cancelled)]
            case "!job":
                texts = [msgspec.json.encode(job).decode()] * len(job.prompts)
            case "!served":
                texts = [str(self.served)]
            case "!fallback":
                effective, reason = "something-else", argument
            case "!unsplit":
                self.unsplit = True
            case "!halved":  # where it is sampled, half of its decode is dispatch
                self.halved = job.sample
            case "!profiled":
                profile = [self.profile(phase, steps) for phase, steps in steps_of(job).items()]
        self.stream_tokens(job)
        if command == "!die-after-tokens":
            self.stream.close(linger_seconds=1.0)
            os._exit(7)
        kind = self.hold(job, argument) if command == "!hold" else "ok"
        if kind != "ok":
            self.end(job, kind)
            return
        time.sleep(WORK_SECONDS)
        outputs = [
            Output(text=text, token_ids=list(range(job.max_new_tokens)), finish_reason="length")
            for text in texts
        ]
        self.end(
            job,
            "ok",
            effective=effective,
            reason=reason,
            batch_bucket=self.bucket(job),
            prompt_tokens=sum(len(p.split() if isinstance(p, str) else p) for p in job.prompts),
            outputs=outputs,
            forward_outputs=outputs_of(job, command),
            parity=PARITY if job.forward and job.forward.compare else None,
            timings=self.timings(job, taken, time.perf_counter_ns()),
            profile=profile,
            sampled=job.sample,
        )

    def ended(self, job: Job, command: str, argument: str) -> bool:
        """Do what a command says before any token; whether the job has ended by it, or never will."""
        match command:
            case "!die":
                os._exit(int(argument or 7))
            case "!kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "!garbage":
                self.stream.send(b"\xc1 no message")
            case "!problem":
                self.end(job, "error", problem=Problem(type=argument, message="as commanded", param=None))
            case "!oom":
                self.ooms += 1
                self.send(self.status())
                self.end(job, "oom")
            case "!state":
                mode, _, state = argument.partition(" ")
                self.announce(mode, cast(Readiness, state))
            case "!compile":
                self.compilations[argument] = self.compilations.get(argument, 0) + 1
                self.announce(argument, "ready")
        return command in ("!garbage", "!problem", "!oom")

    def stream_tokens(self, job: Job) -> None:
        for number in range(job.max_new_tokens * job.stream):
            for index in range(len(job.prompts)):
                self.send(Token(id=job.id, index=index, text=f"{' ' * bool(number)}w{number}"))

    def profile(self, phase: Phase, steps: int) -> StepProfile:
        device = 90.0 if self.cuda else None
        return StepProfile(phase=phase, steps=steps, operators=120.0, kernels=device, launches=device)

    def hold(self, job: Job, path: str) -> OutcomeKind:
        """Run until cancelled, too late or stopped; or until a job '!release' or a file at `path`."""
        while True:
            self.receive(5)
            waiting = [job for job in self.jobs if isinstance(job, Job)]
            released = any(command_of(job) == "!release" for job in waiting)
            if released or self.stopped or (path and os.path.exists(path)):
                return "ok"
            if job.id in self.cancelled:
                return "cancelled"
            if time.perf_counter_ns() > job.deadline_ns:
                return "timeout"

    def end(self, job: Job, kind: OutcomeKind, **fields: Any) -> None:
        given = {"effective": job.mode, "reason": None, "batch_bucket": 0, **fields}
        self.send(Outcome(id=job.id, mode=job.mode, kind=kind, batch_size=job.batch_size, **given))

    def phase(self, steps: int, sampled: bool = False) -> PhaseTimings:
        total = steps * STEP_SECONDS
        known: dict[str, Any] = {"dispatch_seconds": None, "kernel_seconds": None}
        if self.cuda:
            known |= {
                "dispatch_seconds": total * 0.75, "device_span_seconds": total * 0.9,
                "sync_wait_seconds": total * 0.25,
                "dispatch_steps_seconds": [STEP_SECONDS * 0.75] * steps,
                "device_span_steps_seconds": [STEP_SECONDS * 0.9] * steps,
                "period_steps_seconds": [STEP_SECONDS * 1.1] * steps,
            }  # fmt: skip
        elif self.sampled and not self.unsplit:
            dispatch = total * (0.5 if self.halved and steps > 1 else 0.6)
            known |= {
                "dispatch_seconds": dispatch, "dispatch_low_seconds": total * 0.5,
                "dispatch_high_seconds": total * 0.7, "kernel_seconds": total - dispatch,
                "samples_of": "request" if sampled else "traffic",
                **{f"{side}_samples": getattr(SAMPLES, side) for side in SIDES},
            }  # fmt: skip
        known = {"device_span_seconds": None, "sync_wait_seconds": None, **known}
        return PhaseTimings(steps=steps, wall_seconds=total, period_seconds=total * 1.1, **known)

    def timings(self, job: Job, taken: int, done: int) -> Timings:
        split: Source | None = "sampled" if self.sampled and not self.unsplit else None
        return Timings(
            queue_seconds=20e-6,
            **{phase: self.phase(steps, job.sample) for phase, steps in steps_of(job).items()},
            tokenise_seconds=5e-6,
            involuntary_switches=1,
            dispatch_source="measured" if self.cuda else split,
            kernel_source=split,
            taken_ns=taken,
            first_token_ns=(taken + done) // 2 if self.workload.tokens else None,
            done_ns=done,
        )

    def announce(self, mode: str, state: Readiness) -> None:
        compiled, compilations = MODES[mode].cpu.compile is not None, self.compilations.get(mode, 0)
        status = ModeStatus(
            mode=mode, removes=MODES[mode].removes, state=state, effective=self.effective[mode],
            reason=MODES[mode].cpu.reason, cache="cold" if compiled else None, parity=PARITY,
            detail=self.options.get("detail", "as commanded") if state == "failed" else None,
            warmup_seconds=1.5 if state == "ready" else None,
            compile_seconds=[0.7] * (2 * compiled + compilations), graph_breaks=compilations,
            recompiles=compilations, graph_captures=self.captures(mode), splits=self.splits(),
        )  # fmt: skip
        self.send(status)

    def splits(self) -> list[StepSplit]:
        if not self.sampled:
            return []
        known = {"dispatch_share": 0.6, "low": 0.5, "high": 0.7, "step_seconds": STEP_SECONDS}
        return [
            StepSplit(phase=phase, batch=batch, newest=SAMPLES, all=SAMPLES, **known)
            for phase in self.workload.phases
            for batch in self.settings.batch_sizes
        ]

    def status(self) -> EngineStatus:
        options, settings, cuda = self.options, self.settings, self.cuda
        tokens = self.workload.tokens
        sizes = {"layers": 1, "width": 8, "context": 64, "prefill_chunk": settings.prefill_chunk}
        return EngineStatus(
            pid=os.getpid(), model=settings.model, parameters=1, workload=self.workload.name,
            inputs=None if tokens else "x float32 [batch, 2]",
            batch_place=None if tokens else BatchPlace(path=[0]),
            prompt_bytes=options.get("prompt_bytes"), **(sizes if tokens else dict.fromkeys(sizes, 0)),
            batch_buckets=settings.batch_sizes, model_hash="0", model_revision=REVISION,
            device="cuda" if cuda else "cpu", device_name="fake", dtype="float32", torch="none",
            cuda="13.0" if cuda else None, threads=1, cpus=[0], modes=settings.modes,
            memory={**MEMORY, "alloc_retries": self.ooms, "ooms": self.ooms} if cuda else None,
            no_samples="dispatch is measured on this device" if cuda else options.get("no_samples"),
            warm=not options.get("cold"),
        )  # fmt: skip

    def bucket(self, job: Job) -> int:
        return min(bucket for bucket in self.settings.batch_sizes if bucket >= job.batch_size)

    @property
    def sampled(self) -> bool:
        return not self.cuda and "no_samples" not in self.options

    def captures(self, mode: str) -> int:
        replays = self.cuda and MODES[mode].cuda.graph_replay
        return 2 + self.compilations.get(mode, 0) if replays else 0

    def _effective(self, mode: str) -> str:
        return (MODES[mode].cuda if self.cuda else MODES[mode].cpu).name


def command_of(job: Job) -> str:
    """The first prompt; of a module the first text that is a command in its inputs; else ''."""
    if job.forward is None:
        first = job.prompts[0]
        return first if isinstance(first, str) else ""
    found = re.search(rb'"(![^"]*)"', job.forward.inputs or b"")
    return found[1].decode() if found else ""


def steps_of(job: Job) -> dict[Phase, int]:
    if job.forward is not None:
        return {"forward": job.forward.calls}
    return {"prefill": 1, "decode": job.max_new_tokens - 1}


def outputs_of(job: Job, command: str) -> bytes | None:
    """What a module returned, or at '!job' the job."""
    if job.forward is None or not job.forward.outputs:
        return None
    rows = job.forward.batch_size
    tensor = {"dtype": "float32", "shape": [rows, 2], "data": [[0.5, -1.0]] * rows}
    return msgspec.json.encode(job if command == "!job" else {"scores": tensor})


def main() -> int:
    options = json.loads(sys.argv[1])
    settings = msgspec.json.decode(sys.argv[2], type=EngineSettings)
    if "later_exit" in options:
        code, mark = options["later_exit"]
        if Path(mark).exists():
            options["exit"] = code
        Path(mark).touch()
    if "exit" in options:
        print(options.get("says", "as commanded"), file=sys.stderr)
        return int(options["exit"])
    if "says" in options:
        print(options["says"], file=sys.stderr, flush=True)
    if "unconnected" in options:
        signal.pause()
    FakeEngine(settings, options).run()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
