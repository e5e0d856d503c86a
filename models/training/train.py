"""`python -m models.training.train`: train `tiny` on the standard library's source, from scratch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def main(
    out: Annotated[Path, typer.Option(help="Folder for the weights and the tokenizer.")] = Path(
        "results/tiny-training"
    ),
    minutes: Annotated[
        float, typer.Option(min=0.01, help="Limit of all steps and the evaluations between them.")
    ] = 80.0,
    steps: Annotated[
        int, typer.Option(min=1, help="Limit in steps of 4096 tokens, if reached earlier.")
    ] = 9000,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch on a CPU.")] = os.cpu_count() or 1,
    seed: Annotated[int, typer.Option(help="Seed of the weights and of the order of the text.")] = 0,
    compile: Annotated[bool, typer.Option(help="Use torch.compile (needs a C++ compiler).")] = True,
) -> None:
    """Train `tiny`, evaluate held-out files, and write it to --out at every evaluation."""
    # Read once, when torch's OpenMP is loaded: threads that spin while they wait made a step ten times
    # longer on a busy machine; letting them sleep costs nothing on an idle one.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    from models.training.trainer import TrainingPlan, train

    train(TrainingPlan(steps=steps, minutes=minutes, seed=seed, compile=compile), out, threads)


if __name__ == "__main__":
    typer.run(main)
