"""A sweep that ended early is resumed: no row is lost or doubled, and nothing unlike it is accepted."""

from __future__ import annotations

import fcntl
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

import launchbound
from loadtests.plan.cells import Cell, Plan
from loadtests.report.findings import Findings
from loadtests.report.report_files import all_plots
from loadtests.report.results import read_results
from loadtests.run import sweep, target
from loadtests.run.events import (
    EVENTS_FILE,
    BlockCut,
    GeneratorEvent,
    RequestEnded,
    read_events,
    run_load_generator,
)
from loadtests.run.folder import locked
from loadtests.run.rows import ROWS_FILE
from loadtests.run.run_file import RUN_FILE, RunError, SweepRun, read_run, write_run
from loadtests.run.schedule import Finished, Planned, is_whole
from loadtests.run.sweep import resume_sweep, run_sweep
from service.cli.options import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_MACHINE
from tests.support.fake_service import Script, fake_service
from tests.support.made_plans import make_report, read_rows
from tests.support.made_results import edit_run
from tests.support.sweeping import (
    PLAN,
    SIZE_BYTES,
    every_request_of,
    failed_gates,
    kill_at,
    measured,
    resumed,
    start,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("impatient")]


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A service, and the folder of a sweep of it that Ctrl-C stopped in round 3."""

    def generator(*arguments: Any) -> Iterator[GeneratorEvent | None]:
        for event in run_load_generator(*arguments):
            yield event
            if isinstance(event, RequestEnded) and event.round == 3:
                raise KeyboardInterrupt

    folder = tmp_path_factory.mktemp("interrupted")
    with fake_service(Script()) as url:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(target, "COUNTED_WITHIN_SECONDS", 0.2)
            patched.setattr(sweep, "run_load_generator", generator)
            run_sweep(url, PLAN, folder, console=Console(file=io.StringIO()), exporter_port=0)
        yield url, folder


@pytest.fixture
def stopped(interrupted: tuple[str, Path], tmp_path: Path) -> tuple[str, Path]:
    """The same, in a folder of one test's own."""
    url, folder = interrupted
    return url, shutil.copytree(folder, tmp_path / "stopped")


def test_a_killed_sweep_is_not_valid_says_how_to_go_on_and_does(tmp_path: Path) -> None:
    with fake_service(Script()) as url:
        assert kill_at(start(url, tmp_path, "begin"), tmp_path, SIZE_BYTES // 2)
        results = read_results(tmp_path)
        assert not results.run.complete
        assert results.run.rounds == len(results.run.machine_by_round) > 0
        complete = next(gate for gate in results.failed_gates if gate.name == "complete")
        assert "--resume" in complete.detail
        assert "still running, was killed" in complete.detail
        shown = CliRunner().invoke(launchbound.app, ["report", str(tmp_path)])
        assert shown.exit_code == EXIT_FAILED
        assert json.loads(shown.stdout.splitlines()[-1])["valid"] is False
        kept = {row.request_id for row in read_rows(tmp_path)}
        resumed(url, tmp_path)
    assert kept < {row.request_id for row in read_rows(tmp_path)}
    assert measured(tmp_path) == every_request_of(PLAN)
    assert failed_gates(tmp_path) == set()


def test_what_was_measured_stays_only_the_rest_is_sent_and_the_report_names_the_gap(
    stopped: tuple[str, Path],
) -> None:
    """Both files end in a torn line, as a kill may leave them."""
    url, folder = stopped
    before = (folder / ROWS_FILE).read_bytes()
    rates = read_run(folder).client.rates
    for name in (ROWS_FILE, EVENTS_FILE):
        with (folder / name).open("ab") as file:
            file.write(b'{"run":"half of a l')
    run = resumed(url, folder).run
    assert (folder / ROWS_FILE).read_bytes().startswith(before)
    assert measured(folder) == every_request_of(PLAN)
    rows = read_rows(folder)
    assert [row.sequence for row in rows] == list(range(len(rows)))
    assert {row.part for row in rows} == {one.part for one in read_events(folder)} == {1, 2}
    assert run.client.rates == rates != {}
    assert failed_gates(folder) == set()
    assert [one.number for one in run.parts] == [1, 2]
    assert run.parts[0].stopped_because == "interrupted"
    assert all(one.canary_before and one.warmup_passes >= 2 for one in run.parts)
    assert run.parts[1].canary_after
    assert [one.round for one in run.machine_by_round] == list(range(1, 9))
    assert [check.round for check in run.looks] == [8]
    assert (folder / "server_metrics" / "before-2.prom").exists()
    with pytest.raises(RunError, match="is complete"):
        resumed(url, folder)

    gap = next(gate for gate in read_results(folder).gates if gate.name == "measured in one go")
    assert (gap.passed, gap.warning) == (False, True)
    make_report(folder)
    assert "1 gap: from " in (folder / "report.md").read_text()
    (timeline,) = (plot for plot in all_plots(Findings(read_results(folder))) if plot.id == "timeline")
    shaded = [note.text for note in timeline.figure.layout.annotations]
    assert shaded.count("warm-up") == 2
    at = [x for trace in timeline.figure.data for x in trace.x]
    ended, began = (edge(r.start for r in rows if r.part == n) for edge, n in ((max, 1), (min, 2)))
    assert max(at) <= max(r.start for r in rows) - min(r.start for r in rows) - (began - ended) + 1e-3

    # Killed after its last row, it is completed without another request.
    written = (folder / ROWS_FILE).read_bytes()
    run = read_run(folder)
    run.complete, run.ended, run.parts[-1].ended = False, None, None
    write_run(folder, run)
    assert "complete" in failed_gates(folder)
    resumed(url, folder)
    assert (folder / ROWS_FILE).read_bytes() == written
    assert failed_gates(folder) == set()


def test_a_full_disk_ends_with_4_keeps_the_rows_and_is_resumed(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: the write fails in the same place."""
    limit, folder, plan = 60_000, tmp_path / "results", tmp_path / "plan.toml"
    head = 'name = "own"\nmodes = ["eager", "compiled"]\nbatch_sizes = [1]\nrounds = 8\n'
    plan.write_text(f"{head}[[closed_loop]]\nnew_tokens = 4\nrequests = 3\n")
    with fake_service(Script()) as url:
        options = [f"--plan={plan}", f"--out={folder}", f"--url={url}"]
        full = subprocess.run(
            [sys.executable, "launchbound.py", "sweep", *options],
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        )
        assert full.returncode == EXIT_MACHINE, full.stderr
        assert f"then go on with `launchbound sweep --resume {folder}`" in full.stderr
        assert json.loads(full.stdout.splitlines()[-1])["valid"] is False
        kept = {row.request_id for row in read_rows(folder)}
        assert f"the {len(kept)} rows written so far are kept" in full.stderr
        resumed(url, folder)
    assert kept < {row.request_id for row in read_rows(folder)}
    assert failed_gates(folder) == set()


def test_what_differs_from_the_beginning_is_refused_and_named(stopped: tuple[str, Path]) -> None:
    url, folder = stopped
    of_service = {"options": {}, "environment": {"LAUNCHBOUND_THREADS": "1"}}
    differing: list[tuple[Callable[[SweepRun], object], str]] = [
        (lambda run: run.environment.update(commit="000000000000"), "commit was 000000000000, and is"),
        (lambda run: run.environment.update(cpu="another"), "cpu was another"),
        (lambda run: run.parts.clear(), "before sweeps could be resumed"),
        (lambda run: run.engine.update(model_hash="ffff"), "model_hash was ffff, and is 0123456789ab now"),
        (lambda run: run.engine.update(threads=2), "threads was 2"),
        (lambda run: run.engine.update(linears={"layout": "aten"}), "LAUNCHBOUND_LINEARS was aten"),
        (lambda run: setattr(run, "service", of_service), "LAUNCHBOUND_THREADS was 1, and is not set now"),
    ]
    rows, begun = ((folder / name).read_bytes() for name in (ROWS_FILE, RUN_FILE))
    for spoil, message in differing:
        edit_run(folder, spoil)
        with pytest.raises(RunError, match=message):
            resumed(url, folder)
        assert (folder / ROWS_FILE).read_bytes() == rows
        (folder / RUN_FILE).write_bytes(begun)

    for options, message in (
        (["--preset", "quick"], "leave out all but --url and --workers"),
        (["--dry-run"], "leave out all but"),
    ):
        shown = CliRunner().invoke(launchbound.app, ["sweep", "--resume", str(folder), *options])
        assert shown.exit_code == EXIT_BAD_INPUT
        assert message in shown.stderr


def test_a_sweep_with_a_failed_request_is_not_resumed(stopped: tuple[str, Path]) -> None:
    url, folder = stopped
    path = folder / ROWS_FILE
    first, *others = path.read_text().splitlines(keepends=True)
    failed = json.loads(first) | {"status": 503, "error": "the engine is restarting"}
    path.write_text(json.dumps(failed) + "\n" + "".join(others))
    with pytest.raises(RunError, match=r"1 requests of .* failed, .*: run the sweep again"):
        resumed(url, folder)
    complete = next(gate for gate in read_results(folder).failed_gates if gate.name == "complete")
    assert "--resume" not in complete.detail
    assert "run the sweep again" in complete.detail


def test_two_sweeps_cannot_share_a_folder_and_the_other_is_named(stopped: tuple[str, Path]) -> None:
    url, folder = stopped
    holder = (
        "import sys; from pathlib import Path; from loadtests.run.folder import locked\n"
        "with locked(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", holder, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        other.stdout.readline()
        with pytest.raises(RunError, match=f"process {other.pid}"):
            resumed(url, folder)
        other.send_signal(signal.SIGKILL)
        other.wait()
        with locked(folder):
            assert (folder / "sweep.lock").read_text() == f"{os.getpid()}\n"
    assert not (folder / "sweep.lock").exists()


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, flock, calls = tmp_path / "sweep.lock", fcntl.flock, list[int]()

    def flock_once_its_owner_has_ended(file: Any, operation: int) -> None:
        calls.append(operation)
        if len(calls) == 1:
            path.unlink()
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock_once_its_owner_has_ended)
    with locked(tmp_path) as descriptor:
        assert len(calls) == 2
        assert os.path.samestat(os.fstat(descriptor), path.stat())


# ---------------------------------------------------------------- past saturation

SERVICE_SECONDS = 0.005
CLOSED = Cell(mode="eager", batch_size=1, new_tokens=4, requests=1)
PAST = Cell(mode="eager", batch_size=1, new_tokens=4, requests=150, rate=600.0)
"""More requests than the load generator has users: on any machine it is cut, for one reason or the other."""
SHARE = Cell(mode="eager", batch_size=1, new_tokens=4, requests=4, load=0.5)


def plan_of(*cells: Cell) -> Plan:
    return Plan(preset="own", seed=5, rounds=2, cells=(CLOSED, *cells))


def test_a_stopped_sweep_goes_on_with_its_rates_and_its_cut_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped at once after a block was cut, while its requests are in flight."""

    def stopping(*arguments: Any) -> Iterator[GeneratorEvent | None]:
        after = 0
        for event in run_load_generator(*arguments):
            yield event
            after += isinstance(event, BlockCut) or (after > 0 and isinstance(event, RequestEnded))
            if after > 2:
                raise KeyboardInterrupt

    plan = plan_of(PAST, SHARE)
    with fake_service(Script(service_seconds=SERVICE_SECONDS)) as url:
        with monkeypatch.context() as patched:
            patched.setattr(sweep, "run_load_generator", stopping)
            run_sweep(url, plan, tmp_path, console=Console(file=io.StringIO()), exporter_port=0)
        before = read_run(tmp_path)
        assert not before.complete
        result = resume_sweep(url, tmp_path, console=Console(file=io.StringIO()), exporter_port=0)
    run, rows = result.run, read_rows(tmp_path)
    assert before.client.rates.items() <= run.client.rates.items()
    # What a cut block still lacks may be too much for its queue again: on a busy machine it is cut twice.
    sent = {(one.round, one.cell): one.sent for one in run.cut_visits}
    assert all(sent[one.round, one.cell] <= one.sent for one in before.cut_visits)
    assert is_whole(run, Finished(rows))
    assert run.complete
    measured = Counter((r.round, r.cell, r.index) for r in rows if r.stage == "measure")
    requests = Planned(run.cut_visits).requests
    planned = {(n, c.name, i) for n in (1, 2) for c in run.plan.cells for i in range(requests(n, c))}
    assert planned <= measured.keys()
    assert set(measured.values()) == {1}
