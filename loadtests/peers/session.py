"""A comparison with rivals as it goes: the limit of memory, the model calls, the services; and its files."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtests.peers import bandwidth
from loadtests.peers.catalogue import OUTSIDE_PYTORCH, RUNTIMES, SERVERS, Rival
from loadtests.peers.client import Client, generate_body
from loadtests.peers.contestants import Caller, ModeCaller, RuntimeCaller
from loadtests.peers.installation import NotInstalled, interpreter, peers_folder
from loadtests.peers.plan import PeersPlan
from loadtests.peers.process import RivalError, RivalProcess
from loadtests.peers.reference import Reference
from loadtests.peers.results import Contestant, PeersError, PeersRun, write_peers
from loadtests.peers.rounds import Listener, run_rounds, warm_up
from loadtests.peers.service_part import Server, run_service_rounds
from loadtests.peers.table import MARKDOWN_FILE, markdown
from loadtests.run.target import Target

LOAD_SECONDS = 600.0
"""A rival may take so long to convert and load the model."""

SERVED_MODE = "inference_mode"
"""The mode by which the service part asks launchbound, if it is ready: the fastest without a compiler."""


def write_all(folder: Path, run: PeersRun) -> None:
    """Write `peers.json` and `peers.md` of what is measured so far."""
    write_peers(folder, run)
    (folder / MARKDOWN_FILE).write_text(markdown(run), encoding="utf-8")


@dataclass(slots=True)
class Session:
    """One comparison as it goes, from the limit of memory to the last round of the services."""

    target: Target
    plan: PeersPlan
    run: PeersRun
    reference: Reference
    exported: Path
    folder: Path
    report: Callable[[str], None]
    stack: ExitStack
    answer: dict[str, Any] = field(default_factory=dict)

    def measure(self, modes: list[dict[str, Any]]) -> None:
        """All that is measured, in turn: the limit, the calls, the services."""
        self.report("reading memory for the bandwidth limit")
        self.run.limit = bandwidth.limit(self.reference.weight_bytes, self.plan.new_tokens, self.run.cpus[0])
        client = self._client()
        callers: list[Caller] = []
        for mode in modes:
            known = Contestant(name=mode["mode"], kind="mode", effective=mode["effective"])
            self.run.contestants.append(known)
            if mode["state"] == "ready":
                callers.append(ModeCaller(mode["mode"], client))
            else:
                known.unavailable = mode.get("detail") or f"the mode is {mode['state']}"
        if not callers:
            raise PeersError("no mode is ready: see GET /v1/modes for what they wait for")
        self._call_rounds(callers)
        self._service_rounds([caller.name for caller in callers], client)

    def _call_rounds(self, callers: list[Caller]) -> None:
        with ExitStack() as stack:
            for rival in self.plan.wants(RUNTIMES):
                started = self._start(rival, stack, "runtime", cpus=self.run.cpus)
                if started is not None:
                    callers.append(RuntimeCaller(rival.name, started[0]))
            rows, batches = self.reference.rows, self.plan.batches
            self.report(f"warming up {len(callers)} contestants at batches {batches}")
            able = warm_up(callers, rows, batches, self._failed)
            listener = Listener(*self._told("model calls"), self.run.rows.append, self._failed)
            run_rounds(able, rows, batches, self.plan.rounds, self.plan.calls, self.plan.seed, listener)

    def _service_rounds(self, modes: list[str], client: Client) -> None:
        mode = SERVED_MODE if SERVED_MODE in modes else modes[0]
        path = f"/v1/modes/{mode}/generate"
        row = self.reference.rows[0]
        self.run.contestants.append(Contestant(name="launchbound", kind="server", effective=mode))
        template = client.post(path, generate_body([row.prompt], self.plan.new_tokens)).document
        servers = [Server("launchbound", client, path)]
        others = sorted(set(self.run.environment["driver_cpus"]))
        with ExitStack() as stack:
            for rival in self.plan.wants(SERVERS):
                floor = rival.variant == "floor"
                started = self._start(
                    rival, stack, "server", cpus=self.run.cpus, server_cpus=others, answer=template
                )
                if started is not None:
                    _, found = started
                    beside = Client(found["url"])
                    stack.callback(beside.close)
                    servers.append(Server(rival.name, beside, found["path"], not floor))
            listener = Listener(*self._told("services"), self.run.service_rows.append, self._failed)
            run_service_rounds(servers, row, self.plan.rounds, self.plan.requests, self.plan.seed, listener)

    def _start(
        self, rival: Rival, stack: ExitStack, kind: str, **more: object
    ) -> tuple[RivalProcess, dict[str, Any]] | None:
        """The rival's process with the model loaded, and its first answer; None, noted, where it fails."""
        known = Contestant(
            name=rival.name,
            kind="runtime" if kind == "runtime" else "server",
            outside_pytorch=rival.name in OUTSIDE_PYTORCH,
        )
        self.run.contestants.append(known)
        made = peers_folder() / rival.environment / self.run.model_hash
        made.mkdir(parents=True, exist_ok=True)
        task = {
            "folder": str(self.exported), "made": str(made), "variant": rival.variant,
            "prompt_tokens": self.plan.prompt_tokens, "new_tokens": self.plan.new_tokens,
            "vocabulary": self.reference.vocabulary, "end_of_text": self.reference.end_of_text, **more,
        }  # fmt: skip
        try:
            python = interpreter(rival, peers_folder(), self.report)
            self.report(f"{rival.name}: loading the model")
            command = [str(python), "-m", rival.worker]
            process = stack.enter_context(RivalProcess(command, self.folder / f"{rival.name}.log"))
            answer = process.ask(task, LOAD_SECONDS)
        except (NotInstalled, RivalError) as error:
            self._failed(rival.name, str(error))
            return None
        known.settings, known.versions = answer.get("settings", {}), answer.get("versions", {})
        return process, answer

    def _client(self) -> Client:
        client = Client(self.target.url, self.target.headers)
        self.stack.callback(client.close)
        return client

    def _told(self, what: str) -> tuple[Callable[[int], None], Callable[[int], None]]:
        """What is done as a round begins, and as it ends."""

        def began(number: int) -> None:
            self.report(f"{what}: round {number + 1} of {self.plan.rounds}")

        def ended(number: int) -> None:
            self.run.finished[what] = number + 1
            # What is measured so far outlives an interruption, and a kill.
            write_all(self.folder, self.run)

        return began, ended

    def _failed(self, name: str, reason: str) -> None:
        self.report(f"{name}: left out: {reason}")
        next(known for known in self.run.contestants if known.name == name).unavailable = reason
