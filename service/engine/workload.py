"""What an engine serves: a language model's completions, or calls of a user's module; chosen here alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from models.naming import names_module
from models.served import ServedTokenizer
from models.workload import explain
from service.engine.forwarding import Forwarder
from service.engine.generation import Generator
from service.engine.inbox import Inbox, LocalInbox
from service.engine.job import JobWork
from service.engine.text import most_prompt_bytes
from service.modes import Mode
from service.records import Attention, EngineSettings, LinearLayout, Parity, Phase
from service.step.buffers import Buffers, StepInputs, allocate
from service.step.callables import AnyStep, build_step, step_of
from service.step.device import reason
from service.step.loaded_model import LoadedModel, LoadedModule, Precision, load_model, load_module
from service.step.module_inputs import ModuleInputs
from service.step.module_parity import ModuleParityCheck
from service.step.module_step import MODULE
from service.step.parity import DECODE_STEPS, ParityCheck
from service.step.roofs import step_bytes, step_flops
from service.workloads import FORWARD, GENERATE, Workload


class Check(Protocol):
    """Parity with eager. `attention`: what eager runs, beside the reference."""

    attention: Sequence[Attention]

    def run(self, steps: Mapping[tuple[Phase, int], AnyStep]) -> Parity:
        """The verdict on the steps of a mode, by phase and batch size."""

    def wrong(self, verdict: Parity) -> str | None:
        """Why a mode of that newest verdict is not to be served; None where it is."""


class Placed(Protocol):
    """What is loaded: where it is, how it computes, and what it is."""

    device: torch.device
    precision: Precision
    cpus: list[int]
    content_hash: str
    parameters: int
    linears: LinearLayout | None


class ServedWorkload(Protocol):
    """What the parts of an engine know of what they serve.

    `kind` names the phases of its steps, `inputs` has by batch size what they are called on. `may_break`: a
    mode whose compiler cannot take it as one graph is compiled with breaks, and else fails.
    """

    kind: Workload
    may_break: bool
    loaded: Placed
    inputs: Mapping[int, StepInputs]

    def build(self, mode: Mode) -> AnyStep:
        """A new step of `mode`."""

    def check(self, eager: AnyStep) -> Check:
        """Compares steps with `eager`. Raises Unservable where that does not run."""

    def jobs(self, inbox: Inbox | LocalInbox) -> JobWork:
        """Runs jobs on the inputs."""

    def described(self) -> dict[str, Any]:
        """Its fields of `EngineStatus`."""

    def reason(self, error: Exception) -> str:
        """Why a mode failed that raised `error`."""

    @property
    def weight_bytes(self) -> int:
        """Of what a step reads of the weights."""


@dataclass(slots=True)
class Generate:
    """A causal language model completes prompts."""

    settings: EngineSettings
    loaded: LoadedModel
    tokenizer: ServedTokenizer
    inputs: dict[int, Buffers]
    kind: Workload = GENERATE
    may_break: bool = False

    @classmethod
    def open(cls, settings: EngineSettings) -> Generate:
        """Raises ValueError, with the remedy, for what cannot work."""
        loaded = load_model(settings)
        context, chunk = loaded.model.config.context, settings.prefill_chunk
        if (
            context < chunk + DECODE_STEPS
        ):  # parity is checked on a whole chunk and the decode steps behind it
            raise ValueError(
                f"a context of {context} has no room for {DECODE_STEPS} tokens behind a chunk of {chunk}: "
                f"set LAUNCHBOUND_PREFILL_CHUNK to {max(1, chunk // 2)}"
            )
        tokenizer = loaded.opened.tokenizer(loaded.model.config.vocabulary)
        inputs = allocate(loaded.model, settings.batch_sizes, chunk, loaded.precision.cache)
        return cls(settings, loaded, tokenizer, inputs)

    def build(self, mode: Mode) -> AnyStep:
        return build_step(mode, self.loaded.model, precision=self.loaded.precision)

    def check(self, eager: AnyStep) -> Check:
        return ParityCheck(self.loaded.model, self.inputs, eager)

    def jobs(self, inbox: Inbox | LocalInbox) -> Generator:
        return Generator(self.tokenizer, self.inputs, self.loaded.model.config.context, inbox)

    def reason(self, error: Exception) -> str:
        return reason(error)

    def described(self) -> dict[str, Any]:
        model, config = self.loaded.model, self.loaded.model.config
        return {
            "model_revision": self.loaded.opened.revision,
            "layers": config.layers,
            "width": config.width,
            "context": config.context,
            "prompt_bytes": most_prompt_bytes(self.tokenizer, config.context),
            "prefill_chunk": self.settings.prefill_chunk,
            "batching": self.settings.batching,
            "step_bytes": step_bytes(model, self.inputs[max(self.inputs)]),
            "step_flops": step_flops(model),
        }

    @property
    def weight_bytes(self) -> int:
        return step_bytes(self.loaded.model, self.inputs[max(self.inputs)]).weights


@dataclass(slots=True)
class Forward:
    """A user's module is called on inputs."""

    loaded: LoadedModule
    inputs: dict[int, ModuleInputs]
    kind: Workload = FORWARD
    may_break: bool = True

    @classmethod
    def open(cls, settings: EngineSettings) -> Forward:
        """Raises ValueError, with the remedy, for what cannot work."""
        for name, chosen, usual in (
            ("LINEARS", settings.linears, "aten"),
            ("BATCHING", settings.batching, "off"),
            ("CONTEXT", settings.context, None),
        ):
            if chosen != usual:
                raise ValueError(
                    f"{name.lower()} {chosen} is for language models, and {settings.model} is a module: "
                    f"start without LAUNCHBOUND_{name}"
                )
        loaded = load_module(settings)
        inputs = {batch: ModuleInputs(loaded.user, batch) for batch in settings.batch_sizes}
        return cls(loaded, inputs)

    def build(self, mode: Mode) -> AnyStep:
        loaded = self.loaded
        return step_of(mode, loaded.user.module, MODULE, loaded.device.type, precision=loaded.precision)

    def check(self, eager: AnyStep) -> Check:
        return ModuleParityCheck(self.loaded.user, self.inputs, eager, self.loaded.precision)

    def jobs(self, inbox: Inbox | LocalInbox) -> Forwarder:
        return Forwarder(self.inputs, self.loaded.device, inbox)

    def reason(self, error: Exception) -> str:
        return explain(error, otherwise="leave the mode out")

    def described(self) -> dict[str, Any]:
        inputs = "; ".join(f"batch {batch}: {own}" for batch, own in sorted(self.inputs.items()))
        nothing = dict.fromkeys(("layers", "width", "context", "prefill_chunk"), 0)
        return {"workload": self.kind.name, "inputs": inputs, **nothing}

    @property
    def weight_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.loaded.user.module.parameters())


def open_workload(settings: EngineSettings) -> ServedWorkload:
    """What `settings.model` names, loaded. Raises ValueError, with the remedy, for what cannot work."""
    opening: Callable[[EngineSettings], ServedWorkload]
    opening = Forward.open if names_module(settings.model) else Generate.open
    return opening(settings)
