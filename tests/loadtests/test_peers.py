"""A comparison with rivals: who takes part, what is compared, what tables and reports say of it."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import msgspec
import pytest
import torch
from typer.testing import CliRunner

from launchbound import app
from loadtests.peers import process as processes
from loadtests.peers import run as running
from loadtests.peers.process import RUNTIMES, Rival, RivalError, RivalProcess, interpreter
from loadtests.peers.results import (
    PEERS_FILE,
    CallRow,
    Contestant,
    PeersError,
    PeersRun,
    Quality,
    leaving,
    markdown,
    summaries,
)  # fmt: skip
from loadtests.peers.rivals import model_launchbound
from loadtests.peers.rivals.worker import Task
from loadtests.peers.run import (
    LOAD_SECONDS,
    TIE,
    PeersPlan,
    Reference,
    ReferenceRow,
    difference,
    run_peers,
    sweep_beside,
    text_difference,
)  # fmt: skip
from loadtests.run.run_file import read_run
from loadtests.run.target import Target
from models.opening import resolve
from models.training.train import all_logits
from models.transformer import Transformer
from service.cli.options import EXIT_FAILED, EXIT_INTERRUPTED
from service.modes import MODES
from service.step.buffers import allocate
from tests.support import fake_service
from tests.support.fake_service import Script
from tests.support.made_plans import make_plan
from tests.support.made_results import make_results
from tests.support.processes import descendants, gone
from tests.support.serving import PATIENCE_SECONDS, until
from tests.support.small_models import greedy, write_few_layers

PLAN = PeersPlan(rounds=2, calls=2, batches=(1, 2), prompt_tokens=2, new_tokens=4)


def made_run(seconds: dict[str, float], rounds: int = 12) -> PeersRun:
    """A comparison at batch 1 whose contestants took about `seconds`, every round off by its own factor."""
    random = Random(1)
    run = PeersRun(
        started="now", model="tiny", model_hash="h", parameters=1, prompt_tokens=30, new_tokens=32,
        batches=[1], rounds=rounds, calls=1, seed=0, cpus=[1],
    )  # fmt: skip
    for name in seconds:
        mode = name in fake_service.STEP_SECONDS
        run.contestants.append(
            Contestant(name=name, kind="mode" if mode else "runtime", outside_pytorch=name == "ort")
        )
    for number in range(rounds):
        machine = random.uniform(0.5, 2.0)
        for name, value in seconds.items():
            noisy = value * machine * random.uniform(0.99, 1.01)
            run.rows.append(CallRow(round=number, contestant=name, batch=1, seconds=[noisy]))
    return run


def test_ratios_are_paired_within_rounds() -> None:
    (found,) = summaries(made_run({"eager": 0.040, "compiled": 0.026, "ort": 0.020}))
    assert (found.best_mode, found.best_outside) == ("compiled", "ort")
    # Rounds differ by up to 4; the ratio does not.
    assert 1.28 < found.leaving.low < found.leaving.value < found.leaving.high < 1.32
    assert f"leaving PyTorch would buy {found.leaving.value:.2f}×" in leaving([found])


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        ({"eager": 0.010, "ort": 0.020}, "would cost 2.0"),
        ({"eager": 0.020, "ort": 0.020}, "buy nothing that shows"),
        ({"eager": 0.020}, "no runtime outside"),
    ],
)
def test_leaving_can_cost_and_can_buy_nothing_that_shows(seconds: dict[str, float], said: str) -> None:
    assert said in leaving(summaries(made_run(seconds)))


@pytest.mark.parametrize(("bits", "compared"), [(0.99, True), (1.0099, True), (1.0101, False)])
def test_another_precision_is_held_to_its_text_and_not_to_tokens(bits: float, compared: bool) -> None:
    """It is no mode: what leaving PyTorch buys is said of float32."""
    run = made_run({"compiled": 0.026, "aot-inductor-int8": 0.010, "ort": 0.020})
    other = next(one for one in run.contestants if one.name == "aot-inductor-int8")
    other.quality = Quality(bits_per_byte=2 * bits, float32_bits_per_byte=2.0, text_bytes=9)
    run.rows = [
        msgspec.structs.replace(row, difference="row 0") if row.contestant == other.name else row
        for row in run.rows
    ]
    (found,) = summaries(run)
    assert found.best_mode == "compiled"
    (standing,) = [one for one in found.standings if one.contestant is other]
    page = markdown(run)
    assert f"- aot-inductor-int8: {2 * bits:.4f} bits per byte, float32 2.0000" in page
    assert "other tokens" not in page
    assert ("worse text" in page) is not compared
    if compared:
        assert standing.ratio is not None
        assert 0.48 < standing.ratio.value < 0.52
    else:
        assert standing.ratio is None


def read_peers(folder: Path) -> PeersRun:
    return msgspec.json.decode((folder / PEERS_FILE).read_bytes(), type=PeersRun)


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., PeersRun]:
    """Runs a comparison with five fake runtimes, on an export that took place already."""
    names = ("right", "wrong", "dies", "cannot load", "not installed")
    core = min(os.sched_getaffinity(0))

    def make_reference(model: str, folder: Path, count: int, *_: int) -> Reference:
        return Reference(
            model_hash="0123456789ab", parameters=9, vocabulary=16, rows=[row(n) for n in range(count)]
        )

    def interpreter(rival: Rival, *_: object) -> Path:
        if rival.name == "not installed":
            raise RivalError("no wheel for this Python")
        return Path(sys.executable)

    def process(command: list[str], log: Path) -> RivalProcess:
        behaviour = command[2].rpartition(".model_")[2]
        return RivalProcess([command[0], "-m", "tests.support.fake_rival", behaviour], log)

    rivals = tuple(Rival(name, name, outside_pytorch=True) for name in names)
    monkeypatch.setattr(running, "RUNTIMES", rivals)
    monkeypatch.setattr(running, "peers_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(running, "make_reference", make_reference)
    monkeypatch.setattr(running, "interpreter", interpreter)
    monkeypatch.setattr(running, "RivalProcess", process)
    status = fake_service.engine_status

    def compared(
        script: Script | None = None, report: Callable[[str], None] = print, **engine: object
    ) -> PeersRun:
        given = {"cpus": [core], **engine}
        monkeypatch.setattr(fake_service, "engine_status", lambda bucket: status(bucket) | given)
        with fake_service.fake_service(script or Script()) as url:
            return run_peers(Target(url), "tiny", PLAN, tmp_path, report)

    return compared


def test_every_rival_is_a_row_or_a_reason_and_every_round_is_kept_as_it_ends(
    compare: Callable[..., PeersRun], tmp_path: Path
) -> None:
    """Until the last the files say incomplete; a mode with another text is not compared."""
    kept = list[dict[str, int]]()

    def look(line: str) -> None:
        if ": round 2 of" in line:
            so_far = read_peers(tmp_path)
            assert {row.round for row in so_far.rows} >= {0}
            assert "**INCOMPLETE: no end is recorded" in (tmp_path / "peers.md").read_text()
            kept.append(so_far.finished)

    run = compare(Script(odd_mode="compiled"), report=look)
    assert run.incomplete is None
    assert kept == [{"model calls": 1}]
    assert read_peers(tmp_path) == run
    assert all(row.steps_seconds for row in run.rows if row.contestant == "eager")
    why = {one.name: one.unavailable for one in run.contestants}
    assert why["right"] is why["wrong"] is why["eager"] is None
    assert why["not installed"] == "no wheel for this Python"
    assert "unknown architecture" in str(why["cannot load"])
    assert "a last word" in str(why["dies"])
    visits = {(row.contestant, row.batch, row.round) for row in run.rows}
    assert {("right", batch, number) for batch in (1, 2) for number in (0, 1)} <= visits
    assert {row.contestant for row in run.rows if row.difference} == {"wrong", "compiled"}
    assert all(row.difference for row in run.rows if row.contestant in ("wrong", "compiled"))
    for found in summaries(run):
        assert (found.best_outside, found.best_mode) == ("right", "reduce-overhead")
        (odd,) = [one for one in found.standings if one.contestant.name == "compiled"]
        assert odd.ratio is None
    page = (tmp_path / "peers.md").read_text()
    assert "- not installed: no wheel for this Python" in page
    assert "other tokens" in page
    assert "INCOMPLETE" not in page


def test_an_interrupted_comparison_is_kept_and_says_so(
    compare: Callable[..., PeersRun], tmp_path: Path
) -> None:
    def interrupt(line: str) -> None:
        if line.startswith("model calls: round 2"):
            raise KeyboardInterrupt

    run = compare(report=interrupt)
    assert read_peers(tmp_path) == run
    assert {row.round for row in run.rows} == {0}
    assert run.incomplete == "INCOMPLETE: interrupted; 1 of 2 rounds of model calls finished."
    assert f"**{run.incomplete}**" in (tmp_path / "peers.md").read_text()


@pytest.mark.parametrize(("stopped", "code"), [("interrupted", EXIT_INTERRUPTED), ("no rival", EXIT_FAILED)])
def test_the_command_ends_with_130_where_it_was_interrupted(
    stopped: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(_: object, model: str, plan: object, folder: Path, report: object) -> PeersRun:
        (folder / "peers.md").write_text("what was measured")
        return msgspec.structs.replace(made_run({"inference_mode": 0.01}), stopped_because=stopped)

    monkeypatch.setattr("loadtests.peers.run.run_peers", measured)
    monkeypatch.setattr("loadtests.run.target.await_modes", lambda *_, **__: None)
    ended = CliRunner().invoke(app, ["peers", "--url=http://127.0.0.1:1", f"--out={tmp_path}"])
    assert ended.exit_code == code, ended.output
    assert "what was measured" in ended.stdout
    assert json.loads(ended.stdout.splitlines()[-1])["complete"] is False


@pytest.mark.parametrize(
    ("script", "engine", "said"),
    [
        (Script(states=["warming"]), {}, "warming up"),
        (Script(device="cuda"), {}, "float32 on a CPU"),
        (Script(), {"threads": 2}, "one thread"),
        (Script(), {"cpus": []}, "no core"),
    ],
)
def test_a_service_that_cannot_be_compared_is_refused(
    script: Script, engine: dict[str, object], said: str, compare: Callable[..., PeersRun]
) -> None:
    with pytest.raises(PeersError, match=said):
        compare(script, **engine)


# ---------------------------------------------------------------- their processes

NEW = 4
CALL = {"tokens": [[1, 7]], "new_tokens": NEW}


def row(last: int = 7, margin: float = 1.0) -> ReferenceRow:
    """A prompt that is continued by its own last token."""
    return ReferenceRow(
        prompt="p",
        prompt_tokens=[1, last],
        completion="x",
        completion_tokens=[last] * NEW,
        margins=[margin] * NEW,
    )


@contextmanager
def rival(behaviour: str, folder: Path) -> Iterator[RivalProcess]:
    command = [sys.executable, "-m", "tests.support.fake_rival", behaviour]
    with RivalProcess(command, folder / "rival.log") as process:
        yield process


@pytest.mark.parametrize(("behaviour", "said"), [("garbage", "not JSON"), ("silent", "no answer within 1 s")])
def test_what_is_no_answer_is_an_error_that_names_it(behaviour: str, said: str, tmp_path: Path) -> None:
    with rival(behaviour, tmp_path) as process, pytest.raises(RivalError, match=said):
        process.ask(CALL, 1.0 if behaviour == "silent" else 60.0)


DRIVER = """
import sys
from pathlib import Path
from loadtests.peers.process import RivalProcess
command = [sys.executable, "-m", "tests.support.fake_rival", "starts another"]
process = RivalProcess(command, Path(sys.argv[1]))
print(process.ask({"folder": "f"}, 60.0)["settings"]["started"], flush=True)
process.ask({"tokens": [[1]], "new_tokens": 1}, 600.0)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_a_rival_and_what_it_has_started_end_with_a_driver_that_is_killed(
    number: signal.Signals, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        other = int(driver.stdout.readline())
        started = descendants(driver.pid)
        assert other in started
        assert len(started) == 2
        driver.send_signal(number)
        driver.wait(PATIENCE_SECONDS)
        until(lambda: all(gone(pid) for pid in started), "the end of the rival and of what it has started")


def test_tokens_and_texts_may_differ_only_where_a_tie_of_logits_explains_it() -> None:
    other = [[7, 7, 8, 8]]
    assert difference([[7] * NEW], [row()]) is None
    assert difference(other, [row(margin=TIE / 2)]) is None
    assert difference(other, [row(margin=TIE * 2)]) is not None
    assert difference([[7] * 3], [row(margin=TIE / 2)]) is not None
    assert difference([], [row()]) is not None
    assert text_difference(["x"], [row()]) is None
    assert text_difference(["y"], [row()]) is not None
    assert text_difference(["y"], [row(margin=TIE / 2)]) is None
    assert text_difference(["x", "x"], [row()]) is not None


PROMPTS = [[5, 6, 7], [8, 9, 10]]


def ours(folder: Path, variant: str) -> dict[str, Any]:
    """What launchbound's own rival is told: a few layers of `tiny`, and a text."""
    model = write_few_layers(folder / "model")
    return {
        "model": str(model), "folder": str(folder), "made": str(folder / "made"), "variant": variant,
        "cpus": sorted(os.sched_getaffinity(0)), "batches": [2], "prompt_tokens": 3, "new_tokens": NEW,
        "vocabulary": 4096, "texts": ["import os\n\nfor name in os.listdir():\n    print(name)\n"] * 8,
    }  # fmt: skip


def check_ours(model: str, quality: Mapping[str, float], tokens: list[list[int]]) -> None:
    """It predicts the text nearly as float32 does, and continues the prompts as long as it is to."""
    found = msgspec.convert(quality, Quality)
    assert found.text_bytes > 100
    assert 0.5 < found.float32_bits_per_byte < 12
    assert found.bits_per_byte != found.float32_bits_per_byte
    assert abs(found.more) < 0.02
    exact = resolve(model).model(2, torch.device("cpu"), torch.float32, torch.float32)
    assert isinstance(exact, Transformer)
    wanted, _ = greedy(exact, PROMPTS, NEW)
    assert [row[0] for row in tokens] == wanted[:, 0].tolist()
    assert [len(row) for row in tokens] == [NEW, NEW]


@pytest.mark.parametrize("variant", ["bfloat16", "int8"])
def test_ours_of_another_precision_continues_prompts_and_predicts_a_text(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As operators of PyTorch, which need no compilation."""
    monkeypatch.setattr(model_launchbound, "MODE", MODES["inference_mode"])
    monkeypatch.setattr(model_launchbound, "prepare_process", lambda *_: None)
    task = ours(tmp_path, variant)
    threads = torch.get_num_threads()
    try:
        loaded = model_launchbound.load(Task(**task))
    finally:
        torch.set_num_threads(threads)
    assert loaded.settings["linear weights"].startswith(variant)
    check_ours(task["model"], loaded.quality, loaded.call(PROMPTS, NEW))


def test_the_bits_of_a_text_are_those_of_its_tokens_one_by_one(tmp_path: Path) -> None:
    """By another way: all positions at once, rows that do not fill the last group included."""
    opened = resolve(str(write_few_layers(tmp_path / "model")))
    model = opened.model(4, torch.device("cpu"), torch.float32, torch.float32)
    text = model_launchbound._Text(opened, model, ["import os\n"] * 150)
    assert len(text.rows) % 4
    with torch.inference_mode():
        buffers = allocate(model, [4], 64)[4]
        found = text.bits_per_byte(model, model, buffers)
        wrong = text.bits_per_byte(lambda *given: model(given[0] + 1, *given[1:]), model, buffers)
        logits = all_logits(model, text.rows[:, :-1])[:, text.given - 1 :]
    wanted = text.rows[:, text.given :]
    nats = torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum")
    assert found == pytest.approx(float(nats) / math.log(2) / text.size, rel=1e-4)
    # Seen, though one layer hardly looks back.
    assert wrong != pytest.approx(found, rel=1e-4)
    assert text.size > wanted.numel()


@pytest.mark.long
@pytest.mark.compiles
def test_ours_runs_as_a_package(tmp_path: Path) -> None:
    (rival,) = [rival for rival in RUNTIMES if rival.variant == "int8"]
    command = [str(interpreter(rival, print)), "-m", "loadtests.peers.rivals.model_launchbound"]
    task = ours(tmp_path, "int8")
    with RivalProcess(command, tmp_path / "rival.log") as process:
        quality = process.ask(task, LOAD_SECONDS)["quality"]
        tokens = process.ask({"tokens": PROMPTS, "new_tokens": NEW}, LOAD_SECONDS)["tokens"]
    check_ours(task["model"], quality, tokens)


def test_what_pip_cannot_install_is_said_in_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(folder: Path, **_: object) -> None:
        """An environment whose pip is that of these tests, in no time."""
        python = Path(folder, "bin", "python")
        python.parent.mkdir(parents=True)
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)

    requirements = tmp_path / "some.txt"
    requirements.write_text(f"absent @ file://{tmp_path}/absent-1.0-py3-none-any.whl\n")
    monkeypatch.setattr(Rival, "requirements", requirements)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(processes.venv, "create", create)
    with pytest.raises(RivalError, match="absent"):
        interpreter(RUNTIMES[0], print)
    assert not list(tmp_path.rglob(processes.STAMP))


def test_a_mode_that_took_longer_than_in_the_sweep_of_the_same_hour_is_named(tmp_path: Path) -> None:
    run = made_run({"eager": 0.040, "compiled": 0.026})
    assert "was not checked" in markdown(run)
    sweep = read_run(make_results(tmp_path / "sweep", plan=make_plan("quick", 8, ["eager", "compiled"], [1])))
    run.started, run.environment, run.engine = sweep.started, sweep.environment, sweep.engine
    run.sweep = sweep_beside(run, tmp_path)
    assert run.sweep is not None
    for row in run.rows:
        usual = median(run.sweep.steps[row.contestant][1])
        row.steps_seconds.append(usual * (1.32 if row.contestant == "compiled" else 1.0))
    said = {line.split(" at ")[0]: line for line in markdown(run).splitlines() if " at batch 1: " in line}
    assert "they agree within their intervals" in said["- eager"]
    assert "do not agree: 32% slower here" in said["- compiled"]
    run.rows = [row for row in run.rows if row.round < 3]
    assert markdown(run).count("whether they agree is not known") == 2
    for other in ({"commit": "another"}, {"threads": 7}):
        run.environment = {**sweep.environment, **other}
        run.engine = {**sweep.engine, **other}
        assert sweep_beside(run, tmp_path) is None
    run.started, run.environment, run.engine = "2026-01-01T04:00:00Z", sweep.environment, sweep.engine
    assert sweep_beside(run, tmp_path) is None
