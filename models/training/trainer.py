"""Trains `tiny`: seeded, resumable without pickles, with a learning rate schedule over the budget."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from models import checkpoint
from models.checkpoint import CheckpointError
from models.config import CONFIGS, Config
from models.tokenizer import Tokenizer, TokenizerError
from models.training import bits_per_byte
from models.training.corpus import Corpus, CorpusError, batches, read
from models.transformer import Transformer

STATE_FILE = "training.safetensors"


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """Hyperparameters and limits of a training, which ends at the first of `steps` and `minutes`.

    `minutes` are those of Trainer.run up to the last step; the last evaluation comes after them.
    """

    steps: int = 9000
    minutes: float = 80.0
    batch: int = 8
    length: int = 512
    rate: float = 3e-3
    warmup: float = 0.02
    weight_decay: float = 0.1
    evaluate_every: int = 300
    seed: int = 0
    compile: bool = True


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """State of a training. `loss` is in nats per token, `bits_per_byte` that of the held-out files."""

    step: int
    fraction: float
    loss: float
    bits_per_byte: float | None = None


def rate_at(plan: TrainingPlan, fraction: float) -> float:
    """Learning rate after `fraction` of the budget: a linear warm-up, then a cosine down to zero."""
    if fraction < plan.warmup:
        return plan.rate * (fraction + plan.warmup / 20) / (plan.warmup * 1.05)
    return plan.rate * 0.5 * (1 + math.cos(math.pi * (fraction - plan.warmup) / (1 - plan.warmup)))


class Trainer:
    """A model and its optimiser; both are saved to `folder` at every evaluation."""

    def __init__(self, plan: TrainingPlan, config: Config, folder: Path, resume: bool = False) -> None:
        """Start from scratch, or with `resume` from the state in `folder`.

        Raises CheckpointError where there is no state to resume from, or one of another seed.
        """
        self.plan = plan
        self.folder = folder
        self.step = 0
        self.seconds = 0.0
        self.loss = math.inf
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = Transformer(config, 1, seed=plan.seed).to(self.device).train()
        decayed = [p for p in self.model.parameters() if p.dim() > 1]
        plain = [p for p in self.model.parameters() if p.dim() < 2]
        groups: list[dict[str, Any]] = [{"params": decayed}, {"params": plain, "weight_decay": 0.0}]
        self._optimiser = torch.optim.AdamW(
            groups, lr=plan.rate, betas=(0.9, 0.95), weight_decay=plan.weight_decay, fused=True
        )
        self._loss = torch.compile(bits_per_byte.loss, dynamic=False) if plan.compile else bits_per_byte.loss
        if resume:
            self._resume()

    def run(self, corpus: Corpus, tokenizer: Tokenizer, report: Callable[[TrainingProgress], None]) -> float:
        """Train until the plan's first limit; returns the held-out bits per byte of the last weights."""
        plan = self.plan
        bits = math.inf
        held_out = bits_per_byte.with_start(corpus.held_out, tokenizer)
        source = batches(corpus.training, tokenizer, plan.batch, plan.length, plan.seed, skip=self.step)
        began = time.monotonic() - self.seconds
        fraction = self._fraction()
        while fraction < 1:
            self._update(next(source), rate_at(plan, fraction))
            self.step = self.step + 1
            self.seconds = time.monotonic() - began
            fraction = self._fraction()
            measured = None
            if self.step % plan.evaluate_every == 0 or fraction >= 1:
                nat = bits_per_byte.transformer_bits(self.model, held_out, plan.length, autocast=True)
                bits = measured = nat / corpus.held_out_bytes
                self.save(tokenizer)
            report(TrainingProgress(self.step, fraction, self.loss, measured))
        return bits

    def _fraction(self) -> float:
        return min(1.0, max(self.step / self.plan.steps, self.seconds / 60 / self.plan.minutes))

    def _update(self, tokens: Tensor, rate: float) -> None:
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        with torch.autocast(self.device.type, torch.bfloat16):
            loss = self._loss(self.model, tokens.to(self.device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        self.loss = loss.item()

    def save(self, tokenizer: Tokenizer) -> None:
        """Write the model for serving, and the float32 training state to resume from."""
        checkpoint.save(self.model, self.folder)
        tokenizer.save(self.folder)
        tensors = {f"model.{name}": p.detach() for name, p in self.model.named_parameters()}
        for number, entry in self._optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{number}.{key}": value for key, value in entry.items()}
        facts = {"step": str(self.step), "seconds": str(self.seconds), "seed": str(self.plan.seed)}
        part = self.folder / (STATE_FILE + ".part")
        part.write_bytes(to_bytes({k: v.cpu().contiguous() for k, v in tensors.items()}, facts))
        part.replace(self.folder / STATE_FILE)

    def _resume(self) -> None:
        file = self.folder / STATE_FILE
        try:
            with safe_open(file, framework="pt") as opened:
                facts = opened.metadata()
                tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            seed = int(facts["seed"])
            if seed != self.plan.seed:
                raise CheckpointError(
                    f"{file} is of a training with seed {seed}, not {self.plan.seed}: resume it with"
                    f" --seed {seed}, or train without --resume"
                )
            self._restore(tensors)
            self.step = int(facts["step"])
            self.seconds = float(facts["seconds"])
        except (OSError, SafetensorError, KeyError, RuntimeError) as error:
            raise CheckpointError(f"cannot resume from {file} ({error}): train without --resume") from error

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(tensors[f"model.{name}"])
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            if name.startswith("optimiser."):
                _, number, key = name.split(".")
                state.setdefault(int(number), {})[key] = tensor
        self._optimiser.load_state_dict({**self._optimiser.state_dict(), "state": state})


def train(plan: TrainingPlan, folder: Path, threads: int, resume: bool) -> None:
    """Train `tiny` into `folder`; exits with code 2 where the input is bad."""
    torch.set_num_threads(threads)
    console = Console()
    config = CONFIGS["tiny"]
    try:
        text = read()
        tokenizer = (
            Tokenizer.load(folder, config.vocabulary)
            if resume
            else Tokenizer.train(text.training, config.vocabulary)
        )
        run = Trainer(plan, config, folder, resume)
    except (CorpusError, CheckpointError, TokenizerError) as error:
        console.print(str(error), style="red", markup=False)
        sys.exit(2)
    console.print(
        f"{len(text.training)} files to learn from, {len(text.held_out)} held out "
        f"({text.held_out_bytes} bytes); {run.device}, {threads} threads; "
        f"from step {run.step} of {plan.steps}, at most {plan.minutes:g} minutes"
    )
    bits = _run(run, text, tokenizer, console)
    console.print(f"{folder}: {bits:.4f} bits per held-out byte after {run.step} steps, {run.seconds:.0f} s")


def _run(run: Trainer, text: Corpus, tokenizer: Tokenizer, console: Console) -> float:
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.1f} %")
    with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task("compiling", total=1.0)

        def report(now: TrainingProgress) -> None:
            bar.update(task, completed=now.fraction, description=f"step {now.step}, loss {now.loss:.3f}")
            if now.bits_per_byte is not None:
                bar.console.print(f"step {now.step}: {now.bits_per_byte:.4f} bits per held-out byte")

        return run.run(text, tokenizer, report)
