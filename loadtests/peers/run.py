"""Runs a comparison with rivals against a running service, and leaves `peers.json` and `peers.md`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, NamedTuple

import msgspec

from loadtests.peers.process import RUNTIMES, Rival, RivalError, RivalProcess, interpreter, peers_folder
from loadtests.peers.results import (
    MARKDOWN_FILE,
    CallRow,
    Contestant,
    PeersError,
    PeersRun,
    Quality,
    SweepBeside,
    markdown,
    write_peers,
)
from loadtests.plan.cells import read_prompts
from loadtests.run.folder import REPOSITORY, now
from loadtests.run.machine import off_cores
from loadtests.run.rows import RowsError, each_row
from loadtests.run.run_file import INTERRUPTED, RUN_FILE, SweepRun, read_run
from loadtests.run.target import Target, Unreachable, workload_of
from service.parent_death import owned
from service.workloads import GENERATE

EXPORT_SECONDS = 600.0

TIE = 2e-4
"""Two logits closer than twice the tolerance of float32 (1e-4) may be taken in either order."""


class ReferenceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt and its greedy completion; `margins` are each token's logit less that of the runner-up."""

    prompt: str
    prompt_tokens: list[int]
    completion: str
    completion_tokens: list[int]
    margins: list[float]


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """What `models.hf.reference` says of the model that it exported, in float32."""

    model_hash: str
    parameters: int
    vocabulary: int
    rows: list[ReferenceRow]


def make_reference(model: str, folder: Path, count: int, prompt_tokens: int, new_tokens: int) -> Reference:
    """Export `model` to `folder` in a process of its own, which has torch.

    Raises PeersError where that process fails.
    """
    wanted = {"texts": read_prompts(), "count": count}
    wanted |= {"prompt_tokens": prompt_tokens, "new_tokens": new_tokens}
    done = subprocess.run(
        owned([sys.executable, "-m", "models.hf.reference", model, str(folder)], signal.SIGKILL),
        input=json.dumps(wanted),
        capture_output=True,
        text=True,
        timeout=EXPORT_SECONDS,
        cwd=REPOSITORY,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise PeersError((lines or ["the export failed without a message"])[-1])
    return msgspec.json.decode(done.stdout, type=Reference)


def difference(found: Sequence[Sequence[int]], rows: Sequence[ReferenceRow]) -> str | None:
    """How the tokens `found` differ from those of `rows`, by row and position; None where they do not.

    A row may leave the reference at a token whose margin is at most TIE: what follows is another, equally
    greedy text.
    """
    if len(found) != len(rows):
        return f"{len(found)} rows instead of {len(rows)}"
    for index, (tokens, row) in enumerate(zip(found, rows, strict=True)):
        wanted = row.completion_tokens
        if len(tokens) != len(wanted):
            return f"row {index} has {len(tokens)} tokens instead of {len(wanted)}"
        at = next((at for at in range(len(wanted)) if tokens[at] != wanted[at]), None)
        if at is not None and row.margins[at] > TIE:
            return (
                f"row {index}, token {at}: {tokens[at]} instead of {wanted[at]}, "
                f"whose logit leads by {row.margins[at]:.3g}"
            )
    return None


def text_difference(found: Sequence[str], rows: Sequence[ReferenceRow]) -> str | None:
    """The same for a contestant that answers text."""
    if len(found) != len(rows):
        return f"{len(found)} rows instead of {len(rows)}"
    for index, (text, row) in enumerate(zip(found, rows, strict=True)):
        if text != row.completion and min(row.margins) > TIE:
            return f"row {index}: {text[:40]!r}… instead of {row.completion[:40]!r}…"
    return None


LOAD_SECONDS = 600.0
"""A rival may take so long to convert and load the model."""

CALL_SECONDS = 600.0
"""A call may take so long: the first ones compile."""


@dataclass(frozen=True, slots=True)
class PeersPlan:
    """`rounds` that call every contestant at every batch size, `calls` of them timed.

    `only` names the rivals that take part; empty: all.
    """

    rounds: int = 12
    calls: int = 3
    batches: tuple[int, ...] = (1, 4, 16)
    prompt_tokens: int = 30
    new_tokens: int = 32
    seed: int = 0
    only: tuple[str, ...] = ()


def run_peers(
    target: Target, model: str, plan: PeersPlan, folder: Path, report: Callable[[str], None]
) -> PeersRun:
    """Compare the ready modes of `target`, which serves `model`, with the rivals; writes into `folder`.

    What is measured is written after every round, and a comparison that ends early says so. Ctrl-C ends it:
    the result is incomplete. Raises PeersError for a service that cannot be compared, and a `model` that
    cannot be exported.
    """
    document = target.modes()
    engine = document["engine"]
    _check(engine)
    exported = peers_folder() / "models" / engine["model_hash"]
    reference = make_reference(model, exported, max(plan.batches), plan.prompt_tokens, plan.new_tokens)
    if reference.model_hash != engine["model_hash"]:
        raise PeersError(f"the service does not serve {model}: name the model that it serves")
    run = _begun(model, plan, reference, document)
    run.sweep = sweep_beside(run, folder.parent)
    comparison = Comparison(plan, run, reference, exported, folder, report)
    # The driver waits in reads while others run, but its own work belongs on another core.
    with off_cores(run.cpus) as others, ExitStack() as stack:
        run.environment["driver_cpus"] = others
        try:
            comparison.measure(document["modes"], target, stack)
        except KeyboardInterrupt:
            run.stopped_because = INTERRUPTED
            report("interrupted: what is measured so far is kept")
    run.ended = now()
    comparison.write()
    return run


def _check(engine: dict[str, Any] | None) -> None:
    """Raise PeersError where rivals could not run under the conditions of this engine."""
    if engine is None or not engine.get("warm"):
        raise PeersError("the service is still warming up: wait until GET /health/ready answers 200")
    if workload_of(engine) is not GENERATE:
        raise PeersError(
            f"rivals complete prompts, and {engine['model']} is a module: serve a language model"
        )
    if engine["device"] != "cpu" or engine["dtype"] != "float32":
        raise PeersError(
            f"rivals run in float32 on a CPU, the service {engine['dtype']} on {engine['device']}"
        )
    if (threads := engine["threads"]) != 1:
        raise PeersError(f"rivals run with one thread, the engine with {threads}: set LAUNCHBOUND_THREADS=1")
    if not engine["cpus"]:
        raise PeersError("the engine is on no core of its own: set LAUNCHBOUND_ENGINE_CPUS")


def _begun(model: str, plan: PeersPlan, reference: Reference, document: dict[str, Any]) -> PeersRun:
    engine = document["engine"]
    return PeersRun(
        started=now(),
        model=model,
        model_hash=reference.model_hash,
        parameters=reference.parameters,
        prompt_tokens=plan.prompt_tokens,
        new_tokens=plan.new_tokens,
        batches=list(plan.batches),
        rounds=plan.rounds,
        calls=plan.calls,
        seed=plan.seed,
        cpus=engine["cpus"],
        environment=document.get("service") or {},
        engine=engine,
    )


# The sweep of the same hours in the folder beside: both timed the modes, and should agree

NEAR = timedelta(hours=3)
"""A sweep that began longer before is no witness: the machine may do something else by now."""

SAME = ("commit", "cpu", "model_hash", "dtype", "threads", "device")


def sweep_beside(run: PeersRun, results: Path) -> SweepBeside | None:
    """The newest sweep in `results` of what `run` compares, begun within NEAR of it; None: there is none."""
    began, found = datetime.fromisoformat(run.started), []
    for path in results.glob(f"*/{RUN_FILE}"):
        try:
            sweep = read_run(path.parent)
            near = abs(began - datetime.fromisoformat(sweep.started)) <= NEAR
            if near and _subject(sweep) == _subject(run):
                steps = _steps(path.parent, run.new_tokens)
                found.append(SweepBeside(name=path.parent.name, started=sweep.started, steps=steps))
        except RowsError:
            continue
    return max(found, key=lambda sweep: sweep.started, default=None)


def _subject(run: SweepRun | PeersRun) -> list[object]:
    known = {**run.environment, **run.engine}
    return [known.get(name) for name in SAME]


def _steps(folder: Path, new_tokens: int) -> dict[str, dict[int, list[float]]]:
    """By mode and batch size, for each round, the median over its requests of the mean decode step."""
    rounds: dict[tuple[str, int, int], list[float]] = {}
    for row in each_row(folder):
        alone = row.concurrency == 1 and not (row.open_loop or row.control or row.merged)
        decode = row.decode
        if row.counts and alone and row.new_tokens == new_tokens and decode and decode.wall_seconds:
            cell = rounds.setdefault((row.mode, row.batch_size, row.round), [])
            cell.append(decode.wall_seconds / decode.steps)
    steps: dict[str, dict[int, list[float]]] = {}
    for (mode, batch, _), seconds in rounds.items():
        steps.setdefault(mode, {}).setdefault(batch, []).append(median(seconds))
    return steps


# One call of a contestant: its seconds, and how its tokens differ from the reference


class Called(NamedTuple):
    seconds: float
    difference: str | None
    step_seconds: float | None = None


Caller = Callable[[Sequence[ReferenceRow]], Called]
"""Continues the prompts of the rows. Raises RivalError where that fails."""


def call_runtime(process: RivalProcess, rows: Sequence[ReferenceRow]) -> Called:
    """From token ids to token ids, timed by the rival itself around the whole call."""
    new_tokens = len(rows[0].completion_tokens)
    asked = {"tokens": [row.prompt_tokens for row in rows], "new_tokens": new_tokens}
    answer = process.ask(asked, CALL_SECONDS)
    try:
        return Called(float(answer["seconds"]), difference(answer["tokens"], rows))
    except (KeyError, TypeError, ValueError) as error:
        raise RivalError(f"answered without seconds or tokens: {str(answer)[:200]}") from error


def call_mode(target: Target, mode: str, rows: Sequence[ReferenceRow]) -> Called:
    """One request to the running service with the prompts as text; `call_seconds` of its timings."""
    wanted = {
        "prompts": [row.prompt for row in rows],
        "max_new_tokens": len(rows[0].completion_tokens),
        "ignore_eos": True,
    }
    try:
        status, body = target.post(f"/v1/modes/{mode}/generate", wanted, CALL_SECONDS)
    except Unreachable as error:
        raise RivalError(str(error)) from error
    if status != 200:
        raise RivalError(f"{mode} answered {status}: {body[:200]!r}")
    document = json.loads(body)
    texts = [output["text"] for output in document["outputs"]]
    decode = document["timings"]["decode"]
    step_seconds = decode["wall_seconds"] / decode["steps"] if decode["steps"] else None
    return Called(call_seconds(document["timings"]), text_difference(texts, rows), step_seconds)


def call_seconds(timings: Mapping[str, Any]) -> float:
    """The whole call: total less queue, border, tokenising and the front's own work.

    Beside the steps this holds what the engine does between them and the decoding of the text: an upper
    estimate, at our own expense.
    """
    outside = ("queue_seconds", "border_seconds", "front_seconds", "tokenise_seconds")
    return float(timings["total_seconds"] - sum(timings[part] for part in outside))


def call_row(name: str, call: Caller, rows: Sequence[ReferenceRow], calls: int, number: int) -> CallRow:
    """One untimed call, which fetches code and weights into the caches, then `calls` timed ones.

    Every call's tokens are checked; the first difference is kept. Raises RivalError where a call fails.
    """
    called = [call(rows) for _ in range(1 + calls)]
    return CallRow(
        round=number,
        contestant=name,
        batch=len(rows),
        seconds=[one.seconds for one in called[1:]],
        difference=next((one.difference for one in called if one.difference is not None), None),
        steps_seconds=[one.step_seconds for one in called[1:] if one.step_seconds is not None],
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    plan: PeersPlan
    run: PeersRun
    reference: Reference
    exported: Path
    folder: Path
    report: Callable[[str], None]

    def measure(self, modes: list[dict[str, Any]], target: Target, stack: ExitStack) -> None:
        """All contestants, in rounds; `stack` ends the rivals. Raises PeersError where no mode is ready."""
        callers: dict[str, Caller] = {}
        for mode in modes:
            known = Contestant(name=mode["mode"], kind="mode", effective=mode["effective"])
            self.run.contestants.append(known)
            if mode["state"] == "ready":
                callers[known.name] = partial(call_mode, target, known.name)
            else:
                known.unavailable = mode.get("detail") or f"the mode is {mode['state']}"
        if not callers:
            raise PeersError("no mode is ready: see GET /v1/modes for what they wait for")
        for rival in RUNTIMES:
            if not self.plan.only or rival.name in self.plan.only:
                self._start(rival, callers, stack)
        self._warm_up(callers)
        self._rounds(callers)

    def _start(self, rival: Rival, callers: dict[str, Caller], stack: ExitStack) -> None:
        """Add the rival's process with the model loaded; why not is noted where that fails."""
        known = Contestant(name=rival.name, kind="runtime", outside_pytorch=rival.outside_pytorch)
        self.run.contestants.append(known)
        made = peers_folder() / rival.environment / self.run.model_hash
        made.mkdir(parents=True, exist_ok=True)
        task = {
            "model": self.run.model, "folder": str(self.exported), "made": str(made),
            "variant": rival.variant, "cpus": self.run.cpus, "batches": self.run.batches,
            "prompt_tokens": self.plan.prompt_tokens, "new_tokens": self.plan.new_tokens,
            "vocabulary": self.reference.vocabulary, "texts": read_prompts(),
        }  # fmt: skip
        try:
            python = interpreter(rival, self.report)
            self.report(f"{rival.name}: loading the model")
            command = [str(python), "-m", f"loadtests.peers.rivals.model_{rival.environment}"]
            process = stack.enter_context(RivalProcess(command, self.folder / f"{rival.name}.log"))
            answer = process.ask(task, LOAD_SECONDS)
        except RivalError as error:
            self._failed(rival.name, str(error))
            return
        known.settings, known.versions = answer.get("settings", {}), answer.get("versions", {})
        if answer.get("quality") is not None:
            known.quality = msgspec.convert(answer["quality"], Quality)
        callers[rival.name] = partial(call_runtime, process)

    def _warm_up(self, callers: dict[str, Caller]) -> None:
        """Call each twice at each batch size, untimed; who cannot is left out."""
        self.report(f"warming up {len(callers)} contestants at batches {self.plan.batches}")
        for name, call in list(callers.items()):
            try:
                for batch in self.plan.batches:
                    for _ in range(2):
                        call(self.reference.rows[:batch])
            except RivalError as error:
                del callers[name]
                self._failed(name, str(error))

    def _rounds(self, callers: dict[str, Caller]) -> None:
        """Every round calls all at all batches in a fresh order; who fails is left out from then on."""
        for number in range(self.plan.rounds):
            self.report(f"model calls: round {number + 1} of {self.plan.rounds}")
            cells = [(name, batch) for name in sorted(callers) for batch in self.plan.batches]
            Random(f"peers/{self.plan.seed}/{number}").shuffle(cells)
            for name, batch in cells:
                if name not in callers:
                    continue
                rows = self.reference.rows[:batch]
                try:
                    self.run.rows.append(call_row(name, callers[name], rows, self.plan.calls, number))
                except RivalError as error:
                    del callers[name]
                    self._failed(name, f"from round {number} on: {error}")
            self.run.finished["model calls"] = number + 1
            # What is measured so far outlives an interruption, and a kill.
            self.write()

    def _failed(self, name: str, reason: str) -> None:
        self.report(f"{name}: left out: {reason}")
        next(known for known in self.run.contestants if known.name == name).unavailable = reason

    def write(self) -> None:
        write_peers(self.folder, self.run)
        (self.folder / MARKDOWN_FILE).write_text(markdown(self.run), encoding="utf-8")
