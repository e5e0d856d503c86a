"""Write every study's real output into docs/anatomy.md, or with --check fail where one is missing there.

`python -m service.anatomy.page --write | --check`; exit code 1 where an output is missing. It runs the
studies of the shipped model on this machine, which takes minutes: on a quiet one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import dropwhile
from pathlib import Path
from typing import Any

import msgspec
import torch
from rich.console import Console

from service.anatomy import studies
from service.anatomy.prepared_bench import prepare_bench
from service.measure.cases import Bench
from service.protocol.messages import EngineSettings
from service.protocol.processor import processor_name

PAGE = Path(__file__).parents[2] / "docs" / "anatomy.md"

BEGIN = "<!-- From here to the end: made by `python -m service.anatomy.page --write`; do not edit. -->"

MODES = ["eager", "no_grad", "inference_mode", "compiled"]
COLUMNS = 118
LINES_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Example:
    """A study as the page shows it: its command line, and the arguments, which are the body over HTTP too.

    The page has its output from the first line that begins with `begins`.
    """

    study: str
    options: str
    arguments: dict[str, Any]
    title: str = ""
    begins: str = ""

    @property
    def name(self) -> str:
        """The heading of its output in the page."""
        return f"`{self.study}`{self.title}"


EXAMPLES: tuple[Example, ...] = (
    Example("operators", "--mode inference_mode", {"mode": "inference_mode"}),
    Example(
        "operators",
        "--mode compiled --lowering",
        {"mode": "compiled", "lowering": True},
        title=", what the compiler is given, after the step's list",
        begins="Dynamo's graph",
    ),
    Example("operator", '--op "torch.add(a, b)"', {"expression": "torch.add(a, b)"}),
    Example(
        "layers",
        "--layers --set 'operations=[\"matmul\"]' --set 'sizes=[8, 256]'",
        {"operations": ["matmul"], "sizes": [8, 256]},
    ),
    Example(
        "tape",
        "--tape --expression linear-relu-sum --mode eager",
        {"expression": "linear-relu-sum", "mode": "eager"},
    ),
    Example(
        "timeline",
        "--timeline --mode eager --against compiled",
        {"mode": "eager", "against": "compiled"},
    ),
    Example(
        "budget",
        '--budget --set \'modes=["eager", "inference_mode"]\'',
        {"modes": ["eager", "inference_mode"]},
    ),
    Example("memory", "--memory", {}),
    Example("instructions", "--instructions", {}),
    Example("rms-norm", "--rms-norm", {}),
)


def missing(page: str) -> list[str]:
    """The examples that `page` lacks, and the studies of which there is no example."""
    made = page.partition(BEGIN)[2]
    absent = [example.name for example in EXAMPLES if f"### {example.name}\n" not in made]
    exemplified = {example.study for example in EXAMPLES}
    return [*absent, *(name for name in studies.STUDIES if name != "probes" and name not in exemplified)]


def outputs(bench: Bench, about: str) -> Iterator[str]:
    """The made part of the page, piece by piece: every study run on `bench`."""
    yield f"{BEGIN}\n\n## Real output of every study\n\n{about}\n"
    for example in EXAMPLES:
        print(f"{example.study} …", file=sys.stderr)
        finding = studies.run(bench, example.study, msgspec.json.encode(example.arguments), _quiet)
        yield section(example, finding)


def section(example: Example, finding: msgspec.Struct) -> str:
    """One study: how it is run, and what it prints, of which the first lines.

    Raises ValueError where nothing begins as the example says.
    """
    text = StringIO()
    studies.shown(example.study)(finding, Console(file=text, width=COLUMNS))
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    lines = list(dropwhile(lambda line: not line.startswith(example.begins), lines))
    if not lines:
        raise ValueError(f"{example.name}: no line that begins with '{example.begins}' was printed")
    if len(lines) > LINES_SHOWN:
        lines = [*lines[:LINES_SHOWN], f"… {len(lines) - LINES_SHOWN} more lines"]
    printed = "\n".join(lines)
    return (
        f"### {example.name}\n\n`launchbound anatomy {example.options}`, or "
        f"`POST /v1/studies/{example.study}` with `{json.dumps(example.arguments)}`:\n\n"
        f"```text\n{printed}\n```\n"
    )


def about_machine(bench: Bench, note: str | None) -> str:
    """Where the outputs are from, in one paragraph."""
    cores = os.cpu_count()
    where = f"`{bench.settings.model}` on {bench.device.type}, {torch.get_num_threads()} thread(s)"
    said = f" {note}" if note else ""
    return (
        f"{where}, a machine of {cores} cores ({processor_name()}), torch {torch.__version__}, modes "
        f"{', '.join(bench.modes)}, at their defaults.{said}"
    )


def _quiet(text: str, done: int | None = None, total: int | None = None, /) -> None:
    """Minutes of progress are for a person who runs one study."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m service.anatomy.page", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="run every study and write docs/anatomy.md")
    what.add_argument("--check", action="store_true", help="run nothing; fail where a study is missing")
    parser.add_argument("--note", help="a sentence to stand beside the machine, such as that it was busy")
    parser.add_argument("--cache-folder", required=False, default=os.path.expanduser("~/.cache/launchbound"))
    given = parser.parse_args(arguments)
    written = PAGE.read_text(encoding="utf-8")
    if given.write:
        settings = EngineSettings(
            address="", modes=MODES, batch_sizes=[1, 4, 16], threads=1, cache_folder=given.cache_folder
        )
        bench = prepare_bench(settings)
        made = "\n".join(outputs(bench, about_machine(bench, given.note)))
        PAGE.write_text(f"{written.partition(BEGIN)[0].rstrip()}\n\n{made}", encoding="utf-8")
        return 0
    if absent := missing(written):
        print(f"{PAGE.name} has no output of {', '.join(absent)}: run with --write", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
