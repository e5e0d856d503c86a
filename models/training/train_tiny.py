"""Trains `tiny` with output on a terminal: a progress bar, a line per evaluation, errors in one sentence."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from models.checkpoint import CheckpointError
from models.config import CONFIGS
from models.tokenizer import Tokenizer, TokenizerError
from models.training import corpus, trainer


def train(plan: trainer.TrainingPlan, folder: Path, threads: int, resume: bool) -> None:
    """Train `tiny` into `folder`; exits with code 2 where the input is bad."""
    torch.set_num_threads(threads)
    console = Console()
    config = CONFIGS["tiny"]
    try:
        text = corpus.read()
        tokenizer = (
            Tokenizer.load(folder, config.vocabulary)
            if resume
            else Tokenizer.train(text.training, config.vocabulary)
        )
        run = trainer.Trainer(plan, config, folder, resume)
    except (corpus.CorpusError, CheckpointError, TokenizerError) as error:
        console.print(str(error), style="red", markup=False)
        sys.exit(2)
    console.print(
        f"{len(text.training)} files to learn from, {len(text.held_out)} held out "
        f"({text.held_out_bytes} bytes); {run.device}, {threads} threads; "
        f"from step {run.step} of {plan.steps}, at most {plan.minutes:g} minutes"
    )
    bits = _run(run, text, tokenizer, console)
    console.print(f"{folder}: {bits:.4f} bits per held-out byte after {run.step} steps, {run.seconds:.0f} s")


def _run(run: trainer.Trainer, text: corpus.Corpus, tokenizer: Tokenizer, console: Console) -> float:
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.1f} %")
    with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task("compiling", total=1.0)

        def report(now: trainer.TrainingProgress) -> None:
            bar.update(task, completed=now.fraction, description=f"step {now.step}, loss {now.loss:.3f}")
            if now.bits_per_byte is not None:
                bar.console.print(f"step {now.step}: {now.bits_per_byte:.4f} bits per held-out byte")

        return run.run(text, tokenizer, report)
