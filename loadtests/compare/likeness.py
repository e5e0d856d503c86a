"""What has to be alike for two sweeps to be compared, what may differ and is said, and the refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from loadtests.compare.side import Side
from loadtests.report.results import Results
from loadtests.run.rows import RowsError
from loadtests.run.run_file import SweepRun
from loadtests.run.target import linear_layout

UNKNOWN = "not recorded"

Reading = Callable[[SweepRun], Any]


class Unlike(RowsError):
    """Sweeps that are not compared; the message names what differs, and the remedy."""


LAYOUT = "layout of linear weights"


@dataclass(frozen=True, slots=True)
class Contrast:
    """A fact in which sweeps differ, and its different values as text."""

    fact: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.fact}: {' / '.join(self.values)}"


def _environment(name: str) -> Reading:
    return lambda run: run.environment.get(name)


def _engine(name: str) -> Reading:
    return lambda run: run.engine.get(name)


def _gpus(field: str) -> Reading:
    def names(run: SweepRun) -> str:
        gpus = run.environment.get("gpus") or []
        return ", ".join(str(gpu.get(field)) for gpu in gpus) or "none"

    return names


def _device(run: SweepRun) -> str | None:
    """A GPU's name; of a CPU just that, because its name is a fact of its own."""
    return run.engine.get("device_name" if run.engine.get("device") == "cuda" else "device")


def _commit(run: SweepRun) -> str | None:
    commit = run.environment.get("commit")
    return f"{commit}+" if commit and run.environment.get("dirty") else commit


def _method(run: SweepRun) -> str:
    """Of service and load generator. Folders of before it was recorded are alike only of the same commit."""
    known = [value for value in (run.environment.get("method"), run.method) if value is not None]
    if len(known) < 2:
        return f"{UNKNOWN} (commit {run.environment.get('commit')})"
    return str(known[0]) if known[0] == known[1] else f"{known[0]}, load generator {known[1]}"


def _linears(run: SweepRun) -> str:
    return linear_layout(run.engine) or "aten"


NEEDED: Mapping[str, Reading] = {
    "the service's processor": _environment("cpu"),
    "replicas behind its address": lambda run: "several" if run.plan.replicas else "none",
    "its cores": _environment("cores"),
    "its GPU": _gpus("name"),
    "device": _device,
    "threads": _engine("threads"),
    "model hash": _engine("model_hash"),
    "dtype": _engine("dtype"),
    "torch": _engine("torch"),
    "CUDA": lambda run: run.engine.get("cuda") or "none",
    "context": _engine("context"),
    "prefill chunk": _engine("prefill_chunk"),
    LAYOUT: _linears,
    "method": _method,
    "batching": lambda run: str(run.engine.get("batching", "off")),
    "load processes": lambda run: str(run.settings.get("workers", 1)),
}
"""What makes a difference of its own."""

SAID: Mapping[str, Reading] = {
    "commit": _commit,
    "Python": _environment("python"),
    "system": _environment("system"),
    "GPU driver": _gpus("driver_version"),
    "governor": _environment("governor"),
    "instruction sets": _environment("cpu_features"),
    "batch buckets": lambda run: str(run.engine.get("batch_buckets")),
}
"""What a comparison is about, or what is usually without effect."""


def contrasts(runs: Iterable[SweepRun], facts: Mapping[str, Reading]) -> list[Contrast]:
    """The facts in which `runs` differ."""
    runs = list(runs)
    found = []
    for fact, read in facts.items():
        values = tuple(dict.fromkeys(UNKNOWN if (v := read(run)) is None else str(v) for run in runs))
        if len(values) > 1:
            found.append(Contrast(fact, values))
    return found


def checked(before: Side, after: Side, force: bool) -> list[Contrast]:
    """The needed facts in which the two sides differ, and the failed gates of each sweep.

    Raises Unlike where there are any, and where a service did not say its machine; with `force` neither.
    Raises it, whatever `force` says, where a side's sweeps are not of one build.
    """
    for side in (before, after):
        if mixed := contrasts((s.run for s in side.sweeps), {**NEEDED, "commit": _commit}):
            raise Unlike(
                f"the sweeps in {side.path} are not of one build ({'; '.join(map(str, mixed))}): "
                "leave one build's in it"
            )
    sweeps = [*before.sweeps, *after.sweeps]
    found = contrasts((sweep.run for sweep in sweeps), NEEDED)
    if not all(sweep.run.environment.get("cpu") for sweep in sweeps) and not force:
        raise Unlike(
            "a sweep does not say on which machine its service ran: sweep again with a service of this "
            "version, or compare with --force"
        )
    found += [
        Contrast(f"failed gates of {sweep.folder}", (_gates(sweep),)) for sweep in sweeps if _gates(sweep)
    ]
    if found and not force:
        layout = any(contrast.fact == LAYOUT for contrast in found)
        remedy = " (LAUNCHBOUND_LINEARS=aten or transposed keeps the layout the same)" if layout else ""
        raise Unlike(
            f"{before.path} and {after.path} are not alike ({'; '.join(map(str, found))}): "
            f"compare like{remedy}, or see with --force what that gives"
        )
    return found


def _gates(sweep: Results) -> str:
    return ", ".join(gate.name for gate in sweep.failed_gates)
