"""The sections of the GPU check and what becomes of each; cells, goals and tables from their records."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from service.proof import gpu_check, gpu_goals
from service.proof.gpu_check import Checked, Ended
from service.proof.gpu_goals import MOST_SECONDS, Records, read_records
from service.proof.gpu_sections import watch
from service.records import Outcome, StepProfile
from tests.support import outcomes
from tests.support.outcomes import phase

PARTS = gpu_check.parts("folder")


@pytest.mark.parametrize("part", PARTS)
def test_the_limits_of_a_parts_sections_fit_its_time(part: int) -> None:
    beside = gpu_check.groups(PARTS[part])
    assert sum(max(section.seconds for section in group) for group in beside) <= MOST_SECONDS


@pytest.mark.slow
def test_the_later_parts_run_verbs_that_exist() -> None:
    for section in (section for part in PARTS.values() for section in part):
        if section.records:
            continue
        arguments = [sys.executable, section.command[0], section.command[1], "--help"]
        text = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=60).stdout
        options = [option for option in section.command if option.startswith("--")]
        assert [option for option in options if option not in text] == []


def test_rows_are_on_disk_as_soon_as_they_are_written_and_hold_no_infinity(tmp_path: Path) -> None:
    rows = Records(tmp_path / "rows.jsonl")
    rows.write("one", high=float("inf"), share=float("nan"))
    (row,) = read_records(rows.path)
    assert (row["kind"], row["high"], row["share"]) == ("one", None, None)


def test_without_a_gpu_one_sentence_says_so_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert gpu_check.main([]) == 1
    assert capsys.readouterr().err == "gpu-check: torch sees no CUDA device, so nothing can be checked here\n"
    assert not (tmp_path / "out").exists()


def test_a_python_without_the_packages_is_told_which() -> None:
    command = [sys.executable, "-E", "-S", "-m", "service.proof.gpu_check"]  # -S: without site-packages
    done = subprocess.run(command, cwd=gpu_check.ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    told = f"gpu-check: {sys.executable} lacks torch: install it or give another one as PYTHON=\n"
    assert done.stderr == told


def test_an_unknown_section_is_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert gpu_check.main(["--only", "devise"]) == 2
    assert "no section 'devise': try some of device, profiler" in capsys.readouterr().err


# A section that crashes, hangs or prints garbage ends alone


WRITE = "from service.proof.gpu_goals import own_records; rows = own_records(); rows.write('one', number=1); "
FINE = WRITE + "rows.write('two', number=2)"
CRASH = WRITE + "import os; os._exit(7)"
KILLED = WRITE + "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
HANG = WRITE + "import signal; signal.pause()"
STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WRITE + "\nwhile 1: signal.pause()"
)
FAILS = FINE + "; raise ValueError('the third row [x] is wrong')"
GARBAGE = (
    "import os; print('noise on the output'); "
    "open(os.environ['GPU_CHECK_ROWS'], 'ab').write(b'not json\\n{\"no\": \"kind\"}\\n\\xff\\n[1]\\n'); "
    + FINE
)
SILENT = "pass"
LIMIT = 12.0


def section(name: str, code: str) -> gpu_check.Section:
    return gpu_check.Section(name, LIMIT, f"what {name} does", ("-c", code))


def run(folder: Path, name: str, code: str, limit: float = 60.0, grace: float = 5.0) -> gpu_check.Ended:
    (ended,) = gpu_check.run_group([section(name, code)], folder, dict(os.environ), [limit], grace)
    return ended


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "how", "detail", "rows"),
    [
        (FINE, "done", "", 2),
        (CRASH, "failed", "exit code 7", 1),
        (KILLED, "killed", "by SIGKILL", 1),
        (FAILS, "failed", "exit code 1: ValueError: the third row [x] is wrong", 2),
        (GARBAGE, "done", "", 2),
        (SILENT, "failed", "ended well, but wrote no row", 0),
    ],
)
def test_what_was_written_stays_and_the_ending_is_said(
    tmp_path: Path, code: str, how: str, detail: str, rows: int
) -> None:
    ended = run(tmp_path, "one", code)
    assert (ended.how, ended.detail, ended.rows) == (how, detail, rows)
    assert [row["number"] for row in read_records(tmp_path / "one.jsonl")] == [1, 2][:rows]


@pytest.mark.slow
@pytest.mark.parametrize("code", [HANG, STUBBORN])
def test_a_section_that_hangs_is_ended_at_its_limit(tmp_path: Path, code: str) -> None:
    ended = run(tmp_path, "hang", code, LIMIT, grace=0.2)
    assert (ended.how, ended.rows) == ("timed out", 1)
    assert ended.detail == f"still running after {LIMIT:.0f} s"


@contextmanager
def living(folder: Path) -> Iterator[tuple[str, int]]:
    """A pipe's path, for a process to hold open, and its reading end: at its end once nobody holds it."""
    path = folder / "alive"
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    yield str(path), descriptor
    os.close(descriptor)


HOLDS = "import signal, sys; held = open(sys.argv[1], 'wb', 0); held.write(b'x'); signal.pause()"


@pytest.mark.slow
def test_what_a_section_started_ends_with_it(tmp_path: Path) -> None:
    with living(tmp_path) as (path, end):
        child = f"subprocess.Popen([sys.executable, '-c', {HOLDS!r}, {path!r}])"
        code = f"import signal, subprocess, sys; {child}; {WRITE}signal.pause()"
        ended = run(tmp_path, "parent", code, LIMIT, grace=0.2)
        assert ended.how == "timed out"
        # Blocks for ever where the process still holds the pipe.
        assert os.read(end, 16) == b"x"
        assert os.read(end, 16) == b""


@pytest.mark.slow
def test_a_runner_that_is_told_to_end_ends_its_section(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGTERM, gpu_check.end)
    try:
        with living(tmp_path) as (path, end):
            tell = "import os; os.kill(os.getppid(), signal.SIGTERM); signal.pause()"
            code = f"import signal; held = open({path!r}, 'wb', 0); held.write(b'x'); {tell}"
            with pytest.raises(SystemExit) as raised:
                run(tmp_path, "one", code)
            assert raised.value.code == 128 + signal.SIGTERM
            assert os.read(end, 16) == b"x"
            assert os.read(end, 16) == b""
    finally:
        signal.signal(signal.SIGTERM, before)


def checked(folder: Path, codes: dict[str, str], total_seconds: float = 120.0) -> gpu_check.Checked:
    sections = [section(name, code) for name, code in codes.items()]
    return gpu_check.run_sections(sections, folder, folder / "cache", total_seconds)


@pytest.mark.slow
def test_sections_that_are_not_timed_run_beside_each_other_and_end_apart(tmp_path: Path) -> None:
    """Each waits for what the other does."""
    wait = "import pathlib, sys, time; mine, other = map(pathlib.Path, sys.argv[1:]); mine.touch()\n"
    wait += f"while not other.exists(): time.sleep(0.01)\n{WRITE}"
    paths = [str(tmp_path / name) for name in ("a", "b")]
    both = [section(name, wait)._replace(timed=False) for name in ("first", "second")]
    both = [
        one._replace(command=(*one.command, *ends))
        for one, ends in zip(both, (paths, paths[::-1]), strict=True)
    ]
    hanging = section("third", HANG)._replace(timed=False, seconds=LIMIT)
    alone = section("fourth", FINE)
    assert [len(group) for group in gpu_check.groups([*both, hanging, alone])] == [3, 1]
    found = gpu_check.run_sections([*both, hanging, alone], tmp_path, tmp_path / "cache", 2 * LIMIT)
    assert [one.how for one in found.ended] == ["done", "done", "timed out", "done"]


def concluded(found: gpu_check.Checked, folder: Path, part: int | None = None) -> tuple[int, str]:
    out = io.StringIO()
    return gpu_check.conclude(found, folder, part, Console(file=out, width=250)), out.getvalue()


@pytest.mark.slow
def test_the_rest_runs_whatever_becomes_of_a_section(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    codes = {"first": KILLED, "second": HANG, "third": FAILS, "fourth": FINE}
    found = checked(folder, codes, total_seconds=4 * LIMIT)
    assert [(one.name, one.how, one.rows) for one in found.ended] == [
        ("first", "killed", 1),
        ("second", "timed out", 1),
        ("third", "failed", 2),
        ("fourth", "done", 2),
    ]
    assert "\nfourth: done, 2 rows" in capsys.readouterr().out
    code, text = concluded(found, folder)
    assert code == 1
    for word in ("killed", "SIGKILL", "timed out", "failed", "the third row [x] is wrong", "done"):
        assert word in text
    summary = json.loads((folder / "summary.json").read_text())
    assert [one["how"] for one in summary["sections"]] == ["killed", "timed out", "failed", "done"]
    assert summary["passed"] is False
    assert {"commit", "dirty", "compile_cache"} <= summary.keys()


RECORDED = gpu_check.ROOT / "benchmarks" / "20261127-h200-a419d888-gpu-check"


def test_rows_of_an_h200_are_judged_and_fail_by_its_two_failed_goals(tmp_path: Path) -> None:
    names = ("device", "profiler", "ladder", "float32", "tests")
    for name in names[:2] + names[3:]:
        shutil.copy(RECORDED / f"{name}.jsonl", tmp_path)
    (tmp_path / "ladder.jsonl").write_bytes(gzip.decompress((RECORDED / "ladder.jsonl.gz").read_bytes()))
    found = Checked(0.0, 300.0, False, [Ended(name, "done", "", 1.0, 1) for name in names], None)
    assert concluded(found, tmp_path, part=1)[0] == 1
    summary = json.loads((tmp_path / "summary.json").read_text())
    fails = {goal["name"] for goal in summary["goals"] if goal["decides"] and goal["verdict"] != "pass"}
    assert fails == {"first result on disk", "tests/gpu", "instrumentation full / off, decode step"}
    fastest = max(summary["cells"], key=lambda cell: cell["speedup"])
    assert (fastest["mode"], fastest["kernels"], fastest["launches"]) == ("compiled-captured", 64, 1)


@pytest.mark.slow
def test_only_success_all_round_passes_and_what_there_was_no_time_for_fails(tmp_path: Path) -> None:
    assert concluded(checked(tmp_path, {"first": FINE, "second": FINE}), tmp_path)[0] == 0
    found = checked(tmp_path, {"first": FINE}, total_seconds=0.0)
    assert [one.how for one in found.ended] == ["not begun"]
    code, text = concluded(found, tmp_path)
    assert code == 1
    assert "not begun" in text


# Cells, goals and tables from records as a GPU would write them: each goal met, missed and unknown


Rows = dict[str, list[dict[str, Any]]]
STARTED = 1000.0
UNKNOWN = "not measurable here"


def session(number: int, by_window: float = 4e-4) -> dict[str, Any]:
    seconds = {"busy_seconds_by_window": [by_window] * 5, "span_seconds_by_window": [5e-4] * 5}
    return {"kind": "session", "at": 1100.0, "session": number, **seconds}


def mode(name: str, state: str = "ready") -> dict[str, Any]:
    return {"kind": "mode", "at": 1200.0, "mode": name, "state": state, "effective": name, "reason": None}


def cell(batch: int) -> dict[str, Any]:
    named = {"kind": "cell", "at": 1250.0, "mode": "reduce-overhead", "effective": "reduce-overhead"}
    seconds = {"step_seconds": 6e-4, "dispatch_seconds": 9e-5, "span_seconds": 5e-4, "kernel_seconds": 4e-4}
    counts = {"kernels": 90, "launches": 2, "graph_launches": 1}
    return {**named, "batch": batch, **seconds, **counts, "speedup": 3.0, "low": 2.9, "high": 3.1}


GOOD: Rows = {
    "device": [{"kind": "versions", "at": 1012.0}],
    "profiler": [
        {"kind": "unprofiled", "at": 1090.0, "queued_seconds": 5e-4, "upper_bound": False},
        {"kind": "instrumentation", "at": 1095.0, "value": 1.004, "low": 1.001, "high": 1.008},
        *(session(number) for number in (1, 2, 3, 4)),
    ],
    "tests": [
        {"kind": "collected", "at": 1140.0, "count": 1},
        {"kind": "test", "at": 1150.0, "outcome": "passed"},
    ],
    "ladder": [
        {"kind": "plan", "at": 1160.0, "modes": ["eager", "reduce-overhead"], "batches": [1], "jobs": 1},
        {"kind": "job", "at": 1240.0, "outcome": "ok"},
        mode("eager", "warming"),
        mode("eager"),
        mode("reduce-overhead"),
        cell(1),
    ],
    "float32": [{"kind": "plan", "at": 1400.0, "modes": ["eager"]}, mode("eager")],
}


def judged(change: Callable[[Rows], None] = lambda rows: None) -> dict[str, gpu_goals.Goal]:
    rows = deepcopy(GOOD)
    change(rows)
    return {goal.name: goal for goal in gpu_goals.goals_of(rows, STARTED)}


def test_good_rows_meet_every_goal() -> None:
    assert {goal.verdict for goal in judged().values()} == {"pass"}


@pytest.mark.parametrize("section", GOOD)
def test_what_a_section_did_not_measure_is_unknown_and_never_met(section: str) -> None:
    found = judged(lambda rows: rows.pop(section))
    lost = {name for name, goal in found.items() if goal.verdict != "pass"}
    missing = judged().keys() - found.keys()
    assert lost or missing
    assert not [goal for name, goal in found.items() if name in lost and goal.decides and goal.holds]


def replace(section: str, kind: str, **fields: Any) -> Callable[[Rows], None]:
    def change(rows: Rows) -> None:
        for row in rows[section]:
            if row["kind"] == kind:
                row |= fields

    return change


SHORT = {"span_seconds_by_window": [4.7e-4] * 5}
REPLAYS = "modes that promise graph replay"
LAUNCHES = "reduce-overhead: graph launches per decode step"
OTHERS = "reduce-overhead: other launches per decode step"
INSTRUMENTATION = "instrumentation full / off, decode step"
WINDOWS = "kernels by window, sessions over the first"
BUSY = "a step's kernels by window over queued replays"
QUEUED = "queued replays over a step's span by window"


@pytest.mark.parametrize(
    ("change", "name", "verdict"),
    [
        (replace("device", "versions", at=1070.0), "first result on disk", "fail"),
        (replace("ladder", "mode", state="failed"), "parity with eager, bfloat16", "fail"),
        (replace("tests", "test", outcome="failed"), "tests/gpu", "fail"),
        (replace("tests", "collected", count=2), "tests/gpu", "fail"),
        (replace("ladder", "plan", modes=["eager", "compiled"]), "parity with eager, bfloat16", "fail"),
        (replace("ladder", "mode", effective="compiled", reason="skipped"), REPLAYS, "fail"),
        (replace("ladder", "mode", reason="graph replay is not proved"), REPLAYS, "fail"),
        (lambda rows: rows["ladder"].append(mode("reduce-overhead", "failed")), REPLAYS, "fail"),
        (replace("ladder", "plan", modes=["eager", "cuda-graph"]), REPLAYS, UNKNOWN),
        (replace("ladder", "plan", jobs=2), "jobs of the ladder", "fail"),
        (replace("ladder", "job", outcome="error"), "jobs of the ladder", "fail"),
        (replace("ladder", "plan", batches=[1, 8]), LAUNCHES, UNKNOWN),
        (lambda rows: rows["profiler"].pop(), WINDOWS, UNKNOWN),
        (replace("ladder", "cell", graph_launches=0), LAUNCHES, "fail"),
        (replace("ladder", "cell", launches=3), OTHERS, "fail"),
        (replace("profiler", "instrumentation", low=1.02, high=1.05), INSTRUMENTATION, "fail"),
        (replace("profiler", "instrumentation", high=1.03), INSTRUMENTATION, "undecided"),
        (replace("profiler", "unprofiled", queued_seconds=6e-4), QUEUED, "fail"),
        (replace("profiler", "unprofiled", queued_seconds=3.7e-4), BUSY, "fail"),
        (lambda rows: rows["profiler"].append(session(4) | SHORT), QUEUED, "fail"),
        (replace("profiler", "unprofiled", upper_bound=True), BUSY, UNKNOWN),
        (replace("profiler", "session", busy_seconds_by_window=[None] * 5), BUSY, UNKNOWN),
        (lambda rows: rows["profiler"].append(session(4, by_window=3e-4)), WINDOWS, "fail"),
    ],
)
def test_a_goal_that_is_not_met_decides(change: Callable[[Rows], None], name: str, verdict: str) -> None:
    goal = judged(change)[name]
    assert goal.verdict == verdict
    assert not goal.holds


# Cells, from outcomes as a GPU would send them


def outcome(
    mode: str, batch: int, number: int, step_seconds: float, profile: list[StepProfile] | None = None
) -> Outcome:
    times = {"wall_seconds": 9 * step_seconds, "device_span_seconds": 9 * step_seconds}
    steps = phase(4 * step_seconds, None, steps=10, period_seconds=10 * step_seconds, **times)
    done = outcomes.outcome(steps, steps, mode=mode, batch_size=batch, batch_bucket=batch)
    return msgspec.structs.replace(done, id=f"{mode}-{batch}-{number}", profile=profile)


PROFILE = [
    StepProfile(
        phase="decode", steps=10, operators=3, kernels=90, launches=1, graph_launches=1, kernel_seconds=4e-4
    )
]
EAGER = (2e-3, 2.2e-3, 1.9e-3)
REPLAYED = (1e-3, 1.1e-3, 0.95e-3)


def cells(folder: Path, ended: list[Outcome]) -> dict[str, dict[str, Any]]:
    """The cells, by mode, of a section that was killed behind these outcomes."""
    file = gpu_goals.Records(folder / "ladder.jsonl")
    file.write("plan", modes=["eager", "reduce-overhead"], batches=[8], jobs=18)
    for one in ended:
        watch(file, one)
    return {cell["mode"]: cell for cell in gpu_goals.cells_of(gpu_goals.read_records(file.path))}


def timed(mode: str, seconds: Sequence[float]) -> list[Outcome]:
    return [outcome(mode, 8, number, one) for number, one in enumerate(seconds, gpu_goals.PROFILED_ROUND + 1)]


def test_a_profiled_job_gives_kernels_but_no_latency(tmp_path: Path) -> None:
    profiled = outcome("reduce-overhead", 8, gpu_goals.PROFILED_ROUND, 1.0, PROFILE)
    found = cells(tmp_path, [profiled, *timed("eager", EAGER), *timed("reduce-overhead", REPLAYED)])
    row = found["reduce-overhead"]
    assert row["step_seconds"] == pytest.approx(1e-3)
    assert row["speedup"] == row["low"] == row["high"] == pytest.approx(2.0)
    assert (row["kernels"], row["launches"], row["graph_launches"], row["rounds"]) == (90, 1, 1, 3)
    assert row["kernel_seconds"] == pytest.approx(4e-4)


def test_rounds_are_paired_by_their_number_whichever_is_missing(tmp_path: Path) -> None:
    second = timed("reduce-overhead", REPLAYED[:2])[1:]
    row = cells(tmp_path, [*timed("eager", EAGER), *second])["reduce-overhead"]
    assert row["speedup"] == pytest.approx(2.0)
    assert (row["low"], row["high"]) == (None, None)


@pytest.mark.parametrize("broken", [{"steps": 0}, {"steps": None}])
def test_a_job_without_steps_or_numbers_costs_no_other_its_cell(
    tmp_path: Path, broken: dict[str, Any]
) -> None:
    cells(tmp_path, [*timed("eager", EAGER), outcome("reduce-overhead", 8, 1, 1e-3)])
    rows = gpu_goals.read_records(tmp_path / "ladder.jsonl")
    rows[-1]["timings"]["decode"] |= broken
    assert [cell["mode"] for cell in gpu_goals.cells_of(rows)] == ["eager"]


def test_the_summary_has_the_cells_of_a_section_that_was_killed(tmp_path: Path) -> None:
    folder = tmp_path / "check"
    folder.mkdir()
    cells(folder, timed("eager", EAGER))
    killed = Checked(0.0, 1.0, True, [Ended("ladder", "timed out", "", 1.0, 4)], None)
    code, text = concluded(killed, folder)
    assert code == 1
    (cell,) = json.loads((folder / "summary.json").read_text())["cells"]
    assert (cell["mode"], cell["rounds"], cell["speedup"]) == ("eager", 3, 1.0)
    assert "eager" in text


# Sizes, from what a section wrote that served a larger model


REPLAY = "reduce-overhead"
STEP_BYTES = {"weights": 2.5e8, "cache_per_position": 0, "activations_per_row": 0}


Served = list[dict[str, Any]]


def served(model: str, device: float, wall: float, card: str = "NVIDIA H100 80GB HBM3") -> Served:
    """The records of a section that served one mode at batch 1, whose steps read 250 MB."""
    ended = msgspec.to_builtins(outcome(REPLAY, 1, 1, wall))
    time = {"phase": "decode", "batch": 1, "seconds": device, "upper_bound": False}
    sizes = {"step_bytes": STEP_BYTES, "memory_bandwidth": {"bytes_per_second": 2.5e12}}
    return [
        {"kind": "plan", "model": model, "modes": [REPLAY], "batches": [1], "positions": 61},
        {**mode(REPLAY), "device_times": [{**time, "phase": "prefill", "seconds": 9.0}, time]},
        {"kind": "engine", "dtype": "bfloat16", "device_name": card, **sizes},
        {**ended, "kind": "job", "outcome": ended["kind"]},
    ]


@pytest.mark.parametrize(
    ("small", "base", "verdicts", "notes"),
    [
        (
            served("small", 3e-4, 3.4e-4),
            served("base", 1.2e-4, 2e-4),
            ["pass", "pass", "pass"],
            ["0.300 ms", "0.340 ms", "62%; 83% of the measured copy bandwidth"],
        ),
        (
            served("small", 3.1e-4, 3.5e-4),
            served("base", 2e-4, 2e-4),
            ["fail", "fail", "fail"],
            ["0.310", "0.350", "37%"],
        ),
        (
            [],
            served("base", 2e-4, 2e-4, "NVIDIA L4"),
            [UNKNOWN, UNKNOWN, UNKNOWN],
            ["not measured", "not measured", "NVIDIA L4 is not in the table; 50% of the measured copy"],
        ),
        (
            served("small", 2e-4, 3e-4)[:3],
            [],
            ["pass", UNKNOWN, UNKNOWN],
            ["0.200", "not measured", "not measured"],
        ),
    ],
)
def test_goals_of_larger_models_are_of_device_and_wall_and_only_inform(
    small: Served, base: Served, verdicts: list[str], notes: list[str]
) -> None:
    goals = gpu_goals.size_goals([*gpu_goals.sizes_of(small), *gpu_goals.sizes_of(base)])
    assert [goal.verdict for goal in goals] == verdicts
    assert [(goal.note or "").startswith(note) for goal, note in zip(goals, notes, strict=True)] == [True] * 3
    assert all(goal.holds for goal in goals)


def test_the_summary_of_part_2_has_the_sizes_and_their_goals(tmp_path: Path) -> None:
    file = gpu_goals.Records(tmp_path / "check" / "base.jsonl")
    file.path.parent.mkdir()
    for row in served("base", 1.2e-4, 2e-4):
        file.write(**{name: value for name, value in row.items() if name != "at"})
    checked = Checked(0.0, 1.0, True, [Ended("base", "done", "", 1.0, 4)], None)
    code, text = concluded(checked, tmp_path / "check", part=2)
    assert code == 0
    summary = json.loads((tmp_path / "check" / "summary.json").read_text())
    (size,) = summary["sizes"]
    assert (size["model"], size["tokens_per_second"]) == ("base", pytest.approx(5000))
    assert [goal["verdict"] for goal in summary["goals"]] == [UNKNOWN, UNKNOWN, "pass"]
    assert "62%; 83% of the measured copy bandwidth" in text
