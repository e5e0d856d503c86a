"""A series of starts: measured one after another, gone on with, and what its page says over all of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

import launchbound
from loadtests.compare.page import Place, answers_in_words, make_series_picture, size_table
from loadtests.report.findings import Findings
from loadtests.report.page import Text
from loadtests.report.results import read_results
from loadtests.run import sweep
from loadtests.run.events import GeneratorEvent, RequestEnded, run_load_generator
from loadtests.run.folder import DiskFull
from loadtests.run.run_file import read_run
from service.cli.options import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_INTERRUPTED
from service.front import launch
from service.front.launch import LaunchError
from tests.support import fake_service as fake
from tests.support.fake_service import Script, fake_service
from tests.support.made_plans import read_rows
from tests.support.made_results import ALIKE, CLEAR, edit_run, make_series

PLAN = """\
name = "own"
starts = 2
modes = ["eager", "inference_mode", "compiled"]
batch_sizes = [1, 4]
seed = 7
rounds = 8
closed_loop = [{ new_tokens = 4, requests = 1 }]
models = [{ model = "tiny" }, { model = "small", batch_sizes = [1] }]
"""


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(launchbound.app, [*arguments])


def page_of(ended: Result) -> Any:
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_every_start_has_a_service_of_its_own_and_a_series_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two models by two starts: first one cannot be served, then Ctrl-C stops it."""
    launches = list[str]()
    status, plan, folder = fake.engine_status, tmp_path / "own.toml", tmp_path / "series"

    @contextmanager
    def launched(options: Sequence[str], log: Path, **_: object) -> Iterator[str]:
        model = next(option for option in options if option.startswith("--model=")).removeprefix("--model=")
        launches.append(log.parent.name)
        if launches == ["tiny-1", "small-1"]:
            raise LaunchError("no such model")
        monkeypatch.setattr(fake, "engine_status", lambda *own: status(*own) | {"model": model})
        with fake_service(Script()) as url:
            yield url

    def stopped(*arguments: Any) -> Iterator[GeneratorEvent | None]:
        for event in run_load_generator(*arguments):
            yield event
            if len(launches) == 3 and isinstance(event, RequestEnded) and event.round == 3:
                raise KeyboardInterrupt

    monkeypatch.setattr(launch, "launched", launched)
    monkeypatch.setattr(sweep, "run_load_generator", stopped)
    monkeypatch.setattr(sweep, "run_sweep", partial(sweep.run_sweep, exporter_port=0))
    monkeypatch.setattr(sweep, "resume_sweep", partial(sweep.resume_sweep, exporter_port=0))
    plan.write_text(PLAN)
    first = invoke("sweep", f"--plan={plan}", f"--out={folder}")
    assert "launchbound: no such model" in first.stderr
    assert page_of(first)["absent"].keys() == {"small-1", "tiny-2", "small-2"}
    second = invoke("sweep", f"--resume={folder}")
    assert (first.exit_code, second.exit_code) == (EXIT_FAILED, EXIT_INTERRUPTED), second.output
    assert f"with what is measured kept: `launchbound sweep --resume {folder}` goes on" in second.stdout
    assert [(run["label"], run["valid"]) for run in page_of(second)["runs"]][1] == ("small-1", False)
    kept = {row.request_id for name in ("tiny-1", "small-1") for row in read_rows(folder / name)}

    with monkeypatch.context() as changed:
        changed.setenv("LAUNCHBOUND_THREADS", "1")
        assert "LAUNCHBOUND_THREADS was not set, and is 1" in invoke("sweep", f"--resume={folder}").stderr
    third = invoke("sweep", f"--resume={folder}", "--json")
    json.loads(third.stdout)  # one document, though every start has one of its own
    assert launches == ["tiny-1", "small-1", "small-1", "small-1", "tiny-2", "small-2"]
    names = list(dict.fromkeys(launches))
    runs = [read_run(folder / name) for name in names]
    assert all(run.complete for run in runs), third.output
    own = [(run.seed, run.plan.batch_sizes) for run in runs]
    assert own == [(7, [1, 4]), (7, [1]), (8, [1, 4]), (8, [1])]
    assert kept < {row.request_id for name in names for row in read_rows(folder / name)}
    repeats = {model: found["sweeps"] for model, found in page_of(third)["repeats"].items()}
    assert repeats == {"tiny (2.9 M)": 2, "small (2.9 M)": 2}
    assert "Where the answer changes" in (folder / "runs.md").read_text()

    for full in (folder, folder / "tiny-2"):
        assert f"`launchbound sweep --resume {folder}`" in str(DiskFull(full))
    last = invoke("sweep", f"--resume={folder}")
    again = invoke("sweep", f"--plan={plan}", f"--out={folder}")
    assert last.exit_code == again.exit_code == EXIT_BAD_INPUT
    assert f"nothing is left to measure in {folder}" in last.stderr
    assert "holds a sweep already" in again.stderr
    assert page_of(invoke("report", str(folder))) == page_of(third)


def test_a_dry_run_estimates_the_series_and_a_given_service_or_model_is_one(tmp_path: Path) -> None:
    (plan := tmp_path / "own.toml").write_text(PLAN)
    shown = invoke("sweep", f"--plan={plan}", "--dry-run").stdout
    assert shown.startswith("a sweep of each of 2 of tiny and 2 of small, one start of the service after")
    assert "model small, seed 7: 4 cells × 8 rounds" in shown
    of_url = invoke("sweep", f"--plan={plan}", "--dry-run", "--url=http://127.0.0.1:1").stdout
    assert of_url.startswith("this service is not started anew: its one start is measured")
    assert "a sweep of each" not in of_url
    own = invoke("sweep", f"--plan={plan}", "--dry-run", "--model=hf:mine").stdout
    assert own.startswith("a sweep of each of 2 of hf:mine, one start")


def test_an_interval_over_starts_is_students_of_their_log_ratios(tmp_path: Path) -> None:
    """Not of the rounds, of which there are eight times as many: starts of compiled code differ by 10 %."""
    speeds = [CLEAR | {"compiled": share} for share in (0.36, 0.4, 0.44)]
    folder = make_series(tmp_path, {"tiny": speeds, "small": [ALIKE]})
    table, found = make_series_picture(folder)
    mains = [Findings(read_results(folder / f"tiny-{number}")).main[0] for number in (1, 2, 3)]
    own = [one.of("compiled").against_plain.speedup for one in mains]  # type: ignore[union-attr]
    logs = [math.log(one.value) for one in own]
    half = 4.302653 * stdev(logs) / math.sqrt(3)  # t of 2 degrees of freedom at 97.5 %
    together = found["repeats"]["tiny (2.9 M)"]["groups"][0]
    assert (together["baseline"], together["naming"]) == ("inference_mode", 3)
    (gain,) = [one["speedup"] for one in together["over_baseline"] if one["mode"] == "compiled"]
    ends = gain["low"], gain["value"], gain["high"]
    assert ends == pytest.approx([math.exp(fmean(logs) + part) for part in (-half, 0, half)], rel=1e-6)
    assert all(one.high - one.low < (ends[2] - ends[0]) / 3 for one in own)
    (one, _), (alone, _) = [row[1:] for row in table.rows]
    assert str(one) == f"compiled; faster; {ends[1]:.2f}× ({ends[0]:.2f}–{ends[2]:.2f}); 3 of 3 starts"
    assert str(alone) == "inference_mode; equivalent; one start"


def test_a_start_that_chose_another_layout_counts_and_one_that_is_not_valid_does_not(tmp_path: Path) -> None:
    folder = make_series(tmp_path, {"tiny": [CLEAR, CLEAR, CLEAR]})
    edit_run(folder / "tiny-2", lambda run: run.engine.update(linears={"layout": "transposed"}))
    edit_run(folder / "tiny-3", lambda run: setattr(run, "complete", False))
    table, found = make_series_picture(folder)
    assert found["headline"].startswith("NOT VALID: C (tiny-3). 3 sweeps of one build")
    assert ["2 of 2 starts" in str(cell) for row in table.rows for cell in row[1:]] == [True, True]


@pytest.mark.parametrize(
    ("speeds", "state"),
    [
        ([CLEAR | {"compiled": share} for share in (0.35, 0.64)], "not resolved"),
        ([CLEAR, CLEAR, CLEAR | {"compiled": 0.69}], "not resolved"),
        ([CLEAR] * 4 + [CLEAR | {"compiled": 0.69}], "faster"),
        ([ALIKE] * 2, "equivalent"),
    ],
)
def test_an_answer_over_starts_needs_four_of_five_and_an_interval_above_one(
    tmp_path: Path, speeds: list[dict[str, float]], state: str
) -> None:
    _, found = make_series_picture(make_series(tmp_path, {"tiny": speeds}))
    (repeats,) = found["repeats"].values()
    assert [group["state"] for group in repeats["groups"]] == [state] * 2


def test_the_table_says_where_the_answer_changes_along_batch_model_and_prompts() -> None:
    names = {"tiny": "aot-inductor", "small": "inference_mode", "long": "compiled", 16: "compiled"}

    def place(model: str, batch: int, prompts: str = "short") -> Place:
        mode = names.get(batch) or names.get(prompts) or names[model]
        return Place(model, (batch, prompts, 32, 1, None), None if batch == 4 else mode, Text(mode))

    places = [*(place("tiny", batch) for batch in (1, 4, 16)), place("tiny", 1, "long"), place("small", 1)]
    assert answers_in_words(places) == (
        "The answer changes from aot-inductor (tiny, batch 1 (short)) to compiled (tiny, batch 16 (short)); "
        "from aot-inductor (tiny, batch 1 (short)) to inference_mode (small, batch 1 (short)); "
        "from aot-inductor (tiny, batch 1 (short)) to compiled (tiny, batch 1 (long)). "
        "Not resolved: tiny, batch 4 (short)."
    )
    assert [[cell.text for cell in row] for row in size_table(places).rows] == [
        ["tiny", "aot-inductor", "aot-inductor", "compiled"],
        ["tiny", "compiled", "–", "–"],
        ["small", "inference_mode", "–", "–"],
    ]
    assert answers_in_words(places[:1]) == "The answer is aot-inductor wherever it is resolved."
    assert answers_in_words(places[2::2]) == (
        "The answer is compiled (tiny, batch 16); inference_mode (small, batch 1)."
    )
