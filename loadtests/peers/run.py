"""Runs a comparison with rivals against a running service, and leaves `peers.json` and `peers.md`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from loadtests.peers import bandwidth
from loadtests.peers.catalogue import RUNTIMES, SERVERS, NotInstalled, Rival, interpreter, peers_folder
from loadtests.peers.contestants import (
    Caller,
    Client,
    ModeCaller,
    RuntimeCaller,
    Server,
    call_visit,
    server_visit,
)
from loadtests.peers.process import RivalError, RivalProcess
from loadtests.peers.reference import Reference, make_reference
from loadtests.peers.results import Contestant, Kind, PeersError, PeersRun, write_peers
from loadtests.peers.tables import MARKDOWN_FILE, markdown
from loadtests.run.machine import off_cores
from loadtests.run.target import Target

LOAD_SECONDS = 600.0
"""A rival may take so long to convert and load the model."""

SERVED_MODE = "inference_mode"
"""The mode in which the servers part asks launchbound, if it is ready: the fastest without a compiler."""


@dataclass(frozen=True, slots=True)
class PeersPlan:
    """`rounds` visits of every cell with `calls` timed calls each, and of every server with `requests`.

    `only` names the rivals that take part; empty: all.
    """

    rounds: int = 12
    calls: int = 3
    requests: int = 10
    batches: tuple[int, ...] = (1, 4, 16)
    prompt_tokens: int = 30
    new_tokens: int = 32
    seed: int = 0
    only: tuple[str, ...] = ()

    def wants(self, rivals: Iterable[Rival]) -> list[Rival]:
        """Those of `rivals` that take part."""
        return [rival for rival in rivals if not self.only or rival.name in self.only]


def run_peers(
    target: Target, model: str, plan: PeersPlan, folder: Path, report: Callable[[str], None]
) -> PeersRun:
    """Compare the ready modes of `target`, which serves `model`, with the rivals; writes into `folder`.

    What is measured is written after every round, and a comparison that ends early says so. Ctrl-C ends it:
    the result is incomplete. Raises PeersError for a service that cannot be compared, ReferenceFailed where
    `model` cannot be exported.
    """
    document = target.modes()
    _check(document["engine"])
    engine = document["engine"]
    exported = peers_folder() / "models" / engine["model_hash"]
    reference = make_reference(model, exported, max(plan.batches), plan.prompt_tokens, plan.new_tokens)
    if reference.model_hash != engine["model_hash"]:
        raise PeersError(f"the service does not serve {model}: name the model that it serves")
    run = _begun(model, plan, reference, document)
    comparison = Comparison(plan, run, reference, exported, folder, report)
    # The driver waits in reads while others run, but its own work belongs on another core.
    with off_cores(run.cpus) as others, closing(Client(target.url, target.headers)) as client:
        run.environment["driver_cpus"] = others
        try:
            comparison.measure(document["modes"], client)
        except KeyboardInterrupt:
            run.stopped_because = "interrupted"
            report("interrupted: what is measured so far is kept")
    run.ended = _now()
    comparison.write()
    return run


def _check(engine: dict[str, Any] | None) -> None:
    """Raise PeersError where rivals could not run under the conditions of this engine."""
    if engine is None or not engine.get("warm"):
        raise PeersError("the service is still warming up: wait until GET /health/ready answers 200")
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
        started=_now(),
        model=model,
        model_hash=reference.model_hash,
        parameters=reference.parameters,
        prompt_tokens=plan.prompt_tokens,
        new_tokens=plan.new_tokens,
        batches=list(plan.batches),
        rounds=plan.rounds,
        calls=plan.calls,
        requests=plan.requests,
        seed=plan.seed,
        cpus=engine["cpus"],
        environment=document.get("service") or {},
        engine=engine,
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def order(names: Iterable[str], batches: Sequence[int], seed: int, number: int) -> list[tuple[str, int]]:
    """The visits of round `number`, shuffled by `seed`."""
    visits = [(name, batch) for name in sorted(names) for batch in batches]
    Random(f"peers/{seed}/{number}").shuffle(visits)
    return visits


@dataclass(frozen=True, slots=True)
class Comparison:
    """One comparison as it goes: the bandwidth limit, the model calls, the servers."""

    plan: PeersPlan
    run: PeersRun
    reference: Reference
    exported: Path
    folder: Path
    report: Callable[[str], None]

    def measure(self, modes: list[dict[str, Any]], client: Client) -> None:
        """All that is measured, in turn. Raises PeersError where no mode is ready."""
        self.report("reading memory for the bandwidth limit")
        self.run.limit = bandwidth.limit(self.reference.weight_bytes, self.plan.new_tokens, self.run.cpus[0])
        ready = list[str]()
        for mode in modes:
            known = Contestant(name=mode["mode"], kind="mode", effective=mode["effective"])
            self.run.contestants.append(known)
            if mode["state"] == "ready":
                ready.append(mode["mode"])
            else:
                known.unavailable = mode.get("detail") or f"the mode is {mode['state']}"
        if not ready:
            raise PeersError("no mode is ready: see GET /v1/modes for what they wait for")
        self._measure_calls(ready, client)
        self._measure_servers(SERVED_MODE if SERVED_MODE in ready else ready[0], client)

    def _measure_calls(self, modes: list[str], client: Client) -> None:
        rows = self.reference.rows
        callers: dict[str, Caller] = {mode: ModeCaller(_path(mode), client) for mode in modes}
        with ExitStack() as stack:
            for rival in self.plan.wants(RUNTIMES):
                if (started := self._start(rival, "runtime", stack)) is not None:
                    callers[rival.name] = RuntimeCaller(started[0])
            self._warm_up(callers)

            def visit(name: str, batch: int, number: int) -> None:
                row = call_visit(name, callers[name], rows[:batch], self.plan.calls, number)
                self.run.rows.append(row)

            self._rounds("model calls", callers, self.plan.batches, visit)

    def _warm_up(self, callers: dict[str, Caller]) -> None:
        """Call each twice at each batch size, untimed; who cannot is left out."""
        self.report(f"warming up {len(callers)} contestants at batches {self.plan.batches}")
        for name, caller in list(callers.items()):
            try:
                for batch in self.plan.batches:
                    for _ in range(2):
                        caller.call(self.reference.rows[:batch])
            except RivalError as error:
                del callers[name]
                self._failed(name, str(error))

    def _measure_servers(self, mode: str, client: Client) -> None:
        row = self.reference.rows[0]
        self.run.contestants.append(Contestant(name="launchbound", kind="server", effective=mode))
        template, _ = client.generate(_path(mode), [row.prompt], self.plan.new_tokens)
        servers = {"launchbound": Server(client, _path(mode))}
        with ExitStack() as stack:
            for rival in self.plan.wants(SERVERS):
                cpus = sorted(set(self.run.environment["driver_cpus"]))
                started = self._start(rival, "server", stack, server_cpus=cpus, answer=template)
                if started is not None:
                    found = started[1]
                    beside = stack.enter_context(closing(Client(found["url"])))
                    servers[rival.name] = Server(beside, found["path"], rival.variant != "floor")

            def visit(name: str, _: int, number: int) -> None:
                found = server_visit(name, servers[name], row, self.plan.requests, number)
                self.run.service_rows.append(found)

            self._rounds("services", servers, [1], visit)

    def _rounds(
        self,
        what: str,
        names: Iterable[str],
        batches: Sequence[int],
        visit: Callable[[str, int, int], None],
    ) -> None:
        """Every round visits all `names` at all `batches` once; who fails is left out from then on."""
        able = set(names)
        for number in range(self.plan.rounds):
            self.report(f"{what}: round {number + 1} of {self.plan.rounds}")
            for name, batch in order(able, batches, self.plan.seed, number):
                if name not in able:
                    continue
                try:
                    visit(name, batch, number)
                except RivalError as error:
                    able.remove(name)
                    self._failed(name, f"from round {number} on: {error}")
            self.run.finished[what] = number + 1
            # What is measured so far outlives an interruption, and a kill.
            self.write()

    def _start(
        self, rival: Rival, kind: Kind, stack: ExitStack, **more: object
    ) -> tuple[RivalProcess, dict[str, Any]] | None:
        """The rival's process with the model loaded, and its first answer; None, noted, where it fails."""
        known = Contestant(name=rival.name, kind=kind, outside_pytorch=rival.outside_pytorch)
        self.run.contestants.append(known)
        made = peers_folder() / rival.environment / self.run.model_hash
        made.mkdir(parents=True, exist_ok=True)
        task = {
            "folder": str(self.exported), "made": str(made), "variant": rival.variant, "cpus": self.run.cpus,
            "prompt_tokens": self.plan.prompt_tokens, "new_tokens": self.plan.new_tokens,
            "vocabulary": self.reference.vocabulary, "end_of_text": self.reference.end_of_text, **more,
        }  # fmt: skip
        try:
            python = interpreter(rival, self.report)
            self.report(f"{rival.name}: loading the model")
            command = [str(python), "-m", f"loadtests.peers.rivals.{rival.worker}"]
            process = stack.enter_context(RivalProcess(command, self.folder / f"{rival.name}.log"))
            answer = process.ask(task, LOAD_SECONDS)
        except (NotInstalled, RivalError) as error:
            self._failed(rival.name, str(error))
            return None
        known.settings, known.versions = answer.get("settings", {}), answer.get("versions", {})
        return process, answer

    def _failed(self, name: str, reason: str) -> None:
        self.report(f"{name}: left out: {reason}")
        next(known for known in self.run.contestants if known.name == name).unavailable = reason

    def write(self) -> None:
        """Write `peers.json` and `peers.md` of what is measured so far."""
        write_peers(self.folder, self.run)
        (self.folder / MARKDOWN_FILE).write_text(markdown(self.run), encoding="utf-8")


def _path(mode: str) -> str:
    return f"/v1/modes/{mode}/generate"
