"""What serves here, said once an engine has connected: machine, model, modes, cores, address."""

from __future__ import annotations

import os

import msgspec

from service.front.logs.event import Event, one_line
from service.front.settings import Settings
from service.protocol.processor import processor_name
from service.protocol.status import EngineStatus

LABEL_WIDTH = 12


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What a front is, whatever engine it has. `address` is None where a test runs its app without a server.

    `key`: whether calls need one.
    """

    version: str
    commit: str
    address: str | None
    key: bool
    cache_folder: str

    @classmethod
    def of(cls, settings: Settings, version: str, commit: str, address: str | None) -> Place:
        """The front with these settings."""
        return cls(
            version=version,
            commit=commit,
            address=address,
            key=settings.api_key is not None,
            cache_folder=str(settings.cache_folder),
        )


class Banner(Event, frozen=True, kw_only=True):
    """`cpu` is the processor's name, `engine_pid` the engine's process. `modes`: name → state by now."""

    version: str
    commit: str
    address: str | None
    key: bool
    cache_folder: str
    model: str
    parameters: int
    dtype: str
    context: int
    batch_sizes: list[int]
    linears: str | None
    device: str
    device_name: str
    cpu: str
    torch: str
    cuda: str | None
    threads: int
    engine_pid: int
    engine_cpus: list[int]
    front_cpus: list[int]
    modes: dict[str, str]

    def __str__(self) -> str:
        key = "calls need the API key" if self.key else "no API key is set"
        device = self.device if self.device == self.device_name else f"{self.device} ({self.device_name})"
        torch = f"{self.torch} with CUDA {self.cuda}" if self.cuda else self.torch
        sizes = ", ".join(map(str, self.batch_sizes))
        model = f"{self.model} · {self.parameters:,} parameters · {self.dtype} · context {self.context}"
        lines = {
            "launchbound": f"{self.version} ({self.commit})",
            "address": f"{self.address or 'none'} · {key}",
            "model": model,
            "linears": self.linears or "not laid out",
            "device": f"{device} · {self.cpu}",
            "torch": f"{torch} · threads {self.threads}",
            "cores": f"engine {_list(self.engine_cpus)} · front {_list(self.front_cpus)}",
            "batch sizes": sizes,
            "modes": ", ".join(f"{name} {state}" for name, state in self.modes.items()),
            "cache": self.cache_folder,
        }
        return "\n".join(f"{label:<{LABEL_WIDTH}} {one_line(text)}" for label, text in lines.items())


def banner(place: Place, status: EngineStatus, states: dict[str, str]) -> Banner:
    """What `status` says of the engine, on this front's cores; `states` are those of its modes."""
    return Banner(
        **msgspec.structs.asdict(place),
        model=status.model,
        parameters=status.parameters,
        dtype=status.dtype,
        context=status.context,
        batch_sizes=status.batch_buckets,
        linears=status.linears.layout if status.linears else None,
        device=status.device,
        device_name=status.device_name,
        cpu=processor_name(),
        torch=status.torch,
        cuda=status.cuda,
        threads=status.threads,
        engine_pid=status.pid,
        engine_cpus=status.cpus,
        front_cpus=sorted(os.sched_getaffinity(0)),
        modes=states,
    )


def _list(cores: list[int]) -> str:
    return ",".join(map(str, cores))
