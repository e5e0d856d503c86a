"""The engine process: receive, run, answer. Its main thread makes every torch call there is.

Started by the front as `python -m service.engine.process SETTINGS`, with `EngineSettings` as JSON.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import os
import signal
import sys
from time import perf_counter_ns

import msgspec
import torch
from models.checkpoint import TINY_FOLDER, build, content_hash, folder_of
from models.tokenizer import Tokenizer

from service.border.messages import EngineSettings, EngineStatus, Job, Outcome, OutcomeKind, Problem
from service.engine.device import choose_device, choose_dtype, device_name, memory
from service.engine.generation import Generator, JobError, Run
from service.engine.mailbox import Mailbox
from service.engine.placement import engine_cpus, pin
from service.engine.timings import timings
from service.engine.warmup import Warmup
from service.step.calibration import Calibration
from service.step.callables import allocate
from service.step.meters import new_meter

CALIBRATION_SHARE = 0.01
"""At most this share of the engine's time goes into refreshing the dispatch floors."""

IDLE_WAIT_MILLISECONDS = 250


class Engine:
    """Model, modes and border of one engine life."""

    def __init__(self, settings: EngineSettings, mailbox: Mailbox) -> None:
        self._settings, self._mailbox = settings, mailbox
        self._device = choose_device(settings.device)
        self._dtype = choose_dtype(settings.dtype, self._device)
        self._cpus = engine_cpus(settings.cpus)
        torch.set_num_threads(settings.threads or len(self._cpus))
        largest = max(settings.batch_sizes)
        self._model = build(settings.model, largest, self._device, self._dtype)
        twin = type(self._model)(self._model.config.hollow(), largest).to(self._device, self._dtype).eval()
        buffers = allocate(self._model, settings.batch_sizes, settings.prefill_chunk)
        ends = sorted({min(settings.batch_sizes), largest})
        self._calibration = Calibration(self._model)
        self._warmup = Warmup(
            settings.modes,
            self._model,
            twin,
            buffers,
            allocate(twin, ends, 1),
            self._calibration,
            mailbox.send,
        )
        meter = new_meter(self._device, largest)
        self._generator = Generator(
            tokenizer_of(settings.model, self._model.config.vocabulary), buffers, meter, self._model.config.context, mailbox
        )
        self._busy_until_ns = self._calibrated_ns = perf_counter_ns()
        self._calibration_seconds = 0.0

    def run(self) -> None:
        """Serve until told to stop; modes become ready one after another meanwhile."""
        self._mailbox.send(self._status(warm=False))
        for _ in self._warmup.run():
            self._serve_waiting()
        self._settle()
        while not self._mailbox.stopped:
            self._serve_waiting()
            self._calibrate_in_idle_time()
            if self._mailbox.idle:
                self._mailbox.receive(IDLE_WAIT_MILLISECONDS)

    def _settle(self) -> None:
        """All that must not change any more is frozen: compiled entries, long-lived objects, cores."""
        torch.compiler.set_stance("fail_on_recompile")
        gc.collect()
        gc.freeze()
        pin(self._cpus, exempt=self._mailbox.own_threads)
        self._mailbox.send(self._status(warm=True))
        self._busy_until_ns = perf_counter_ns()

    def _serve_waiting(self) -> None:
        """Run every job that has arrived; on entry the engine was busy until now, or idle since the last."""
        self._mailbox.receive()
        while not self._mailbox.stopped and (job := self._mailbox.take()) is not None:
            self._serve(job)
            self._busy_until_ns = perf_counter_ns()
            self._mailbox.receive()

    def _serve(self, job: Job) -> None:
        taken_ns = perf_counter_ns()
        queue_ns = max(0, min(taken_ns, self._busy_until_ns) - job.sent_ns)
        rung = self._warmup.rungs.get(job.mode)
        run, problem = Run(), None
        if taken_ns > job.deadline_ns:
            run.kind = "timeout"
        elif self._mailbox.is_cancelled(job):
            run.kind = "cancelled"
        elif rung is None or rung.status.state != "ready":
            run.kind, problem = "error", self._not_ready(job.mode)
        else:
            run.kind, problem = self._attempt(job, rung.steps, run)
        status = rung.status if rung else None
        floor = self._calibration.floor(job.mode, run.bucket) if run.bucket else None
        done_ns = perf_counter_ns()
        self._mailbox.send(
            Outcome(
                id=job.id, mode=job.mode, effective=status.effective if status else job.mode,
                reason=status.reason if status else None, kind=run.kind, problem=problem,
                batch_size=len(job.prompts), batch_bucket=run.bucket, prompt_tokens=run.prompt_tokens,
                outputs=[row.output() for row in run.rows],
                timings=timings(job, run, floor, self._device.type == "cuda", queue_ns, taken_ns, done_ns)
                if run.bucket else None,
            )
        )  # fmt: skip

    def _attempt(self, job: Job, steps: dict, run: Run) -> tuple[OutcomeKind, Problem | None]:  # type: ignore[type-arg]
        """Run `job`; a failure becomes a problem, save one that poisons the device's context."""
        try:
            self._generator.run(job, steps, run)
        except JobError as error:
            return "error", error.problem
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            message = f"the device is out of memory: send fewer prompts or tokens ({error})"
            return "oom", Problem(type="out_of_memory", message=message)
        except torch.AcceleratorError:
            # The context is gone and so is every later call in it: the front starts a new engine.
            raise
        except Exception as error:  # noqa: BLE001 - the border of one job: the engine outlives it
            return "error", Problem(type="internal", message=f"{type(error).__name__}: {error}"[:2000])
        return run.kind, None

    def _not_ready(self, mode: str) -> Problem:
        states = {name: rung.status.state for name, rung in self._warmup.rungs.items()}
        ready = [name for name, state in states.items() if state == "ready"]
        state = states.get(mode, "not configured")
        message = f"mode '{mode}' is {state}; ready: {', '.join(ready) or 'none yet'}"
        return Problem(type="mode_not_ready", message=message, param="mode")

    def _calibrate_in_idle_time(self) -> None:
        """Refresh one floor where no job waits and the budget allows, so that floors follow the machine."""
        since = (perf_counter_ns() - self._calibrated_ns) / 1e9
        if not self._mailbox.idle or self._calibration_seconds > since * CALIBRATION_SHARE:
            return
        self._calibrated_ns = perf_counter_ns()
        self._calibration_seconds = self._calibration.refresh()
        self._warmup.announce_floors()
        self._busy_until_ns = perf_counter_ns()

    def _status(self, warm: bool) -> EngineStatus:
        config, device = self._model.config, self._device
        return EngineStatus(
            pid=os.getpid(), model=self._settings.model,
            parameters=sum(p.numel() for p in self._model.parameters()),
            layers=config.layers, width=config.width, context=config.context,
            prefill_chunk=self._settings.prefill_chunk, batch_buckets=sorted(self._settings.batch_sizes),
            model_hash=content_hash(self._settings.model), device=device.type,
            device_name=device_name(device),
            dtype=str(self._dtype).removeprefix("torch."), torch=str(torch.__version__), cuda=torch.version.cuda,
            threads=torch.get_num_threads(), cpus=self._cpus, modes=list(self._warmup.rungs),
            memory=memory(device), warm=warm,
        )  # fmt: skip


def tokenizer_of(model: str, vocabulary: int) -> Tokenizer:
    """The tokenizer beside the model's weights; the seeded sizes use that of `tiny`."""
    return Tokenizer.load(folder_of(model) or TINY_FOLDER, vocabulary)


def prepare_process(settings: EngineSettings) -> None:
    """Die with the front, leave Ctrl-C to it, and keep compiled code in a private folder per version."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        raise SystemExit("the front ended before its engine had started")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    key = hashlib.sha256(f"{torch.__version__} {sys.version}".encode()).hexdigest()[:12]
    folder = os.path.join(settings.cache_folder, f"compiled-{key}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    torch.set_float32_matmul_precision("highest")
    torch.manual_seed(int.from_bytes(os.urandom(7)))


def main(arguments: list[str]) -> int:
    """Run one engine life; returns the exit code: 0 stopped as told, 2 settings that cannot work."""
    settings = msgspec.json.decode(arguments[0], type=EngineSettings)
    prepare_process(settings)
    mailbox = Mailbox(settings.address)
    try:
        with torch.no_grad():
            Engine(settings, mailbox).run()
    except ValueError as error:
        print(f"launchbound engine: {error}", file=sys.stderr)
        return 2
    finally:
        mailbox.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
