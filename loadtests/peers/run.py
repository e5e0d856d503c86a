"""Runs a comparison with rivals against a running service, and leaves `peers.json` and `peers.md`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loadtests.peers.installation import peers_folder
from loadtests.peers.plan import PeersPlan
from loadtests.peers.reference import Reference, make_reference
from loadtests.peers.results import PeersError, PeersRun
from loadtests.peers.session import Session, write_all
from loadtests.run.machine import off_cores
from loadtests.run.target import Target


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
    with ExitStack() as stack:
        session = Session(target, plan, run, reference, exported, folder, report, stack)
        # The driver waits in reads while others run, but its own work belongs on another core.
        run.environment["driver_cpus"] = stack.enter_context(off_cores(run.cpus))
        try:
            session.measure(document["modes"])
        except KeyboardInterrupt:
            run.stopped_because = "interrupted"
            report("interrupted: what is measured so far is kept")
    run.ended = _now()
    write_all(folder, run)
    return run


def _check(engine: dict[str, Any] | None) -> None:
    """Raise PeersError where rivals could not run on the terms of this engine."""
    if engine is None or not engine.get("warm"):
        raise PeersError("the service is still warming up: wait until GET /health/ready answers 200")
    if engine["device"] != "cpu" or engine["dtype"] != "float32":
        raise PeersError(
            f"rivals run in float32 on a CPU, the service {engine['dtype']} on {engine['device']}"
        )
    if engine["threads"] != 1:
        threads = engine["threads"]
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
