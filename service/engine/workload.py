"""What an engine serves: a language model's completions, or calls of a user's module; chosen here alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from models.naming import is_called
from models.served import ServedTokenizer
from models.workload import explain
from service.engine.forwarding import Forwarder
from service.engine.generation import Generator
from service.engine.inbox import Inbox, LocalInbox
from service.engine.text import most_prompt_bytes
from service.modes import MODES, Mode
from service.records import EngineSettings
from service.step.buffers import Buffers, allocate
from service.step.callables import AnyStep, build_step, step_of
from service.step.device import reason
from service.step.loaded_model import LoadedModel, LoadedModule, load_model, load_module
from service.step.module_inputs import ModuleInputs
from service.step.module_parity import CallParity, ModuleParityCheck
from service.step.module_step import MODULE
from service.step.parity import DECODE_STEPS, ParityCheck
from service.step.roofs import step_bytes, step_flops
from service.workloads import FORWARD, GENERATE, Workload

Check = ParityCheck | ModuleParityCheck
"""`run` gives the verdict on a mode's steps, `wrong` why it is not served, `attention` what eager runs."""


@dataclass(slots=True)
class Generate:
    """A causal language model completes prompts.

    `kind` names the phases of its steps; `inputs` has by batch size what they are called on. `may_break`: a
    mode whose compiler cannot take the model as one graph is compiled with breaks; else it fails.
    """

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
        # Parity is checked on a whole chunk and the decode steps behind it.
        if context < chunk + DECODE_STEPS:
            raise ValueError(
                f"a context of {context} has no room for {DECODE_STEPS} tokens behind a chunk of {chunk}: "
                f"set LAUNCHBOUND_PREFILL_CHUNK to {max(1, chunk // 2)}"
            )
        tokenizer = loaded.opened.tokenizer(loaded.model.config.vocabulary)
        inputs = allocate(loaded.model, settings.batch_sizes, chunk, loaded.precision.cache)
        return cls(settings, loaded, tokenizer, inputs)

    def build(self, mode: Mode) -> AnyStep:
        """A new step of `mode`."""
        return build_step(mode, self.loaded.model, precision=self.loaded.precision)

    def check(self, eager: AnyStep) -> ParityCheck:
        """Compares steps with `eager`. Raises Unservable where that does not run."""
        return ParityCheck(self.loaded.model, self.inputs, eager)

    def jobs(self, inbox: Inbox | LocalInbox) -> Generator:
        """Runs jobs on the inputs."""
        return Generator(self.tokenizer, self.inputs, self.loaded.model.config.context, inbox)

    def reason(self, error: Exception) -> str:
        """Why a mode failed that raised `error`."""
        return reason(error)

    def described(self) -> dict[str, Any]:
        """Its fields of `EngineStatus`."""
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
        """Of what a step reads of the weights."""
        return step_bytes(self.loaded.model, self.inputs[max(self.inputs)]).weights


@dataclass(slots=True)
class Forward:
    """A user's module is called on inputs. To the engine it has what `Generate` has."""

    loaded: LoadedModule
    inputs: dict[int, ModuleInputs]
    kind: Workload = FORWARD
    may_break: bool = True

    @classmethod
    def open(cls, settings: EngineSettings) -> Forward:
        """Raises ValueError, with the remedy, for what cannot work."""
        loaded = load_module(settings)
        inputs = {batch: ModuleInputs(loaded.user, batch) for batch in settings.batch_sizes}
        return cls(loaded, inputs)

    def build(self, mode: Mode) -> AnyStep:
        loaded = self.loaded
        return step_of(mode, loaded.user.module, MODULE, loaded.device.type, precision=loaded.precision)

    def check(self, eager: AnyStep) -> ModuleParityCheck:
        return ModuleParityCheck(self.loaded.user, self.inputs, eager, self.loaded.precision)

    def jobs(self, inbox: Inbox | LocalInbox) -> Forwarder:
        parity = CallParity.of(self.build(MODES["eager"]), self.loaded.user, self.loaded.precision)
        return Forwarder(self.inputs, self.loaded.device, inbox, parity)

    def reason(self, error: Exception) -> str:
        return explain(error, otherwise="leave the mode out")

    def described(self) -> dict[str, Any]:
        inputs = "; ".join(f"batch {batch}: {own}" for batch, own in sorted(self.inputs.items()))
        nothing = dict.fromkeys(("layers", "width", "context", "prefill_chunk"), 0)
        place = self.inputs[min(self.inputs)].first.batch_place
        forms = {"batch_place": place, "input_sizes": list(self.loaded.user.sizes)}
        return {"workload": self.kind.name, "inputs": inputs, **forms, **nothing}

    @property
    def weight_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.loaded.user.module.parameters())


ServedWorkload = Generate | Forward


def open_workload(settings: EngineSettings) -> ServedWorkload:
    """What `settings.model` names, loaded. Raises ValueError, with the remedy, for what cannot work."""
    return Forward.open(settings) if is_called(settings.model) else Generate.open(settings)
