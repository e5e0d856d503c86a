"""A whole sweep against a stand-in for the service: the files it leaves, its gates, and how it fails."""

from __future__ import annotations

import io
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from rich.console import Console
from typer.testing import CliRunner

import launchbound
from loadtests.plan.cells import Cell, Plan
from loadtests.plan.plan_file import plan_of, read_plan_file
from loadtests.report.results import read_results
from loadtests.report.surroundings import environment, reproduce
from loadtests.run import sweep, target
from loadtests.run.events import (
    Assignment,
    GeneratorEvent,
    GeneratorStarted,
    RequestEnded,
    run_load_generator,
)
from loadtests.run.run_file import PLAN_FILE, read_run
from loadtests.run.sweep import SweepResult, resume_sweep, run_sweep
from loadtests.run.target import Target, TargetError
from service.cli.options import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_MACHINE
from service.records import METHOD
from tests.support import fake_service as fake_service_module
from tests.support import sweeping
from tests.support.fake_service import Script, fake_service, service_itself
from tests.support.made_plans import make_plan, read_rows
from tests.support.made_results import make_results
from tests.support.processes import gone
from tests.support.serving import until
from tests.support.sweeping import CLIENT_CPU, OF_TIME, failed, raw_rows, swept

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("impatient")]

CONTRACT = {
    "cell", "round", "sequence", "stage", "mode", "effective_mode", "batch_size", "concurrency",
    "intended_start", "start", "latency_seconds", "latency_from_intended_seconds", "status", "error",
    "prompt_tokens", "completion_tokens", "queue_seconds", "dispatch_seconds", "device_span_seconds",
    "kernel_seconds", "sync_wait_seconds", "other_seconds", "total_seconds", "time_to_first_token_seconds",
    "involuntary_switches", "prefill", "decode", "sources", "kernels", "launches", "index", "text_digest",
}  # fmt: skip
"""The fields of a row, as the results' contract names them."""

SMALL = msgspec.structs.replace(sweeping.PLAN, cells=sweeping.PLAN.cells[:-1])
"""Without the open loop."""


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> tuple[SweepResult, Script, str]:
    """A sweep that went well: its result, what the service saw, and what was printed."""
    script = Script(states=["cold", "warming", "ready"])
    out = io.StringIO()
    return swept(tmp_path_factory.mktemp("good"), script, SMALL, out), script, out.getvalue()


def test_a_good_sweep_passes_every_gate_and_its_rows_have_the_fields_of_the_contract(
    good: tuple[SweepResult, Script, str],
) -> None:
    result, script, printed = good
    assert failed(result) <= {CLIENT_CPU}
    assert result.run.complete
    rows = raw_rows(result.folder)
    assert all(row.keys() >= CONTRACT for row in rows)
    assert [row["sequence"] for row in rows] == list(range(len(rows)))
    assert {row["stage"] for row in rows} == {"warmup", "measure"}
    warm = [row for row in rows if row["stage"] == "warmup"]
    assert {row["cell"] for row in warm} == {cell.name for cell in SMALL.cells}
    assert rows[: len(warm)] == warm
    assert all(row["round"] <= 0 for row in warm)
    assert all(row["prefill"]["steps"] == 1 and row["decode"]["steps"] == 3 for row in rows)
    assert {headers["x-launchbound-run"] for headers in script.headers} == {result.run.run}
    assert {headers["x-request-id"] for headers in script.headers} == {row["request_id"] for row in rows}
    for told in ("eager cold", "warm-up pass 2", "measured 80 requests"):
        assert told in printed


def test_the_run_is_described_well_enough_to_repeat_it(good: tuple[SweepResult, Script, str]) -> None:
    run = read_run(good[0].folder)
    assert run.plan == SMALL
    assert run.seed == 5
    assert run.engine["model_hash"] == "0123456789ab"
    assert run.mode("compiled")["parity"]["passed"] is True
    assert (run.method, run.environment) == (METHOD, service_itself())
    assert run.client.cpu_share is not None
    assert run.client.warmup_passes >= 2
    assert [one.round for one in run.machine_by_round] == list(range(1, 9))
    assert all(one.canary_bytes_per_second for one in run.machine_by_round)
    assert (run.rounds, [check.round for check in run.looks]) == (8, [8])


def test_everything_that_is_wrong_in_a_sweep_fails_its_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mode with texts of its own, out of parity, and a request of another client; on a GPU, with a key."""
    script = Script(odd_mode="compiled", in_parity=False, device="cuda", api_key="secret")

    def with_another_client(*arguments: Any) -> Iterator[GeneratorEvent | None]:
        yield from run_load_generator(*arguments)
        script.ran["eager"] += 1

    monkeypatch.setenv("LAUNCHBOUND_API_KEY", "secret")
    monkeypatch.setattr(sweep, "run_load_generator", with_another_client)
    result = swept(tmp_path, script, SMALL)
    assert result.run.complete
    assert "secret" not in (tmp_path / "run.json").read_text()
    details = {gate.name: gate.detail for gate in result.failed}
    counted = "client rows = server's count"
    assert details.keys() - {CLIENT_CPU} == {"same texts in all modes", "parity", counted}
    assert "compiled b=1 short n=4 c=1 (16 ×)" in details["same texts in all modes"]
    rows = read_rows(tmp_path)
    assert len({(row["mode"], row["text_digest"]) for row in raw_rows(tmp_path)}) == 3
    sent = sum(row.mode == "eager" for row in rows)
    assert f"eager: {sent} rows, {sent + 1} counted" in details[counted]
    assert result.run.client.warmup_passes >= 3


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (Script(failed_mode="compiled"), "compiled failed to become ready"),
        (Script(api_key="secret"), "LAUNCHBOUND_API_KEY"),
        (Script(largest_bucket=2), "takes up to 4"),
        (Script(), "does not serve cuda-graph"),
    ],
)
def test_a_service_that_cannot_be_swept_is_refused_with_the_remedy(
    tmp_path: Path, script: Script, message: str
) -> None:
    extra = Cell(mode="cuda-graph" if "cuda-graph" in message else "eager", batch_size=16)
    cells = SMALL.cells if script.api_key or script.failed_mode else (*SMALL.cells, extra)
    plan = Plan(preset="own", seed=1, rounds=1, cells=cells)
    with pytest.raises(TargetError, match=message):
        swept(tmp_path, script, plan)


def invoke_sweep(folder: Path, script: Script, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[str], str]:
    """Exit code, lines and errors of `launchbound sweep` against a service of its own."""
    monkeypatch.setattr(sweep, "run_sweep", partial(run_sweep, exporter_port=0))
    options = ["--modes", "eager,compiled", "--batch-sizes", "1", "--out", str(folder)]
    with fake_service(script) as url:
        done = CliRunner().invoke(launchbound.app, ["sweep", "--url", url, *options])
    return done.exit_code, done.stdout.splitlines(), done.stderr


def test_a_mode_that_failed_is_a_failed_check_with_the_json_line_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, lines, errors = invoke_sweep(tmp_path, Script(failed_mode="compiled"), monkeypatch)
    assert code == EXIT_FAILED
    assert json.loads(lines[-1]) == {"path": str(tmp_path), "headline": None, "valid": False}
    assert "compiled failed to become ready" in errors


def test_an_interrupted_sweep_ends_with_130_its_report_and_the_json_line_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def generator(*arguments: Any) -> Iterator[GeneratorEvent | None]:
        for event in run_load_generator(*arguments):
            yield event
            if isinstance(event, RequestEnded) and event.round == 1:
                raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "run_load_generator", generator)
    code, lines, _ = invoke_sweep(tmp_path, Script(), monkeypatch)
    assert code == EXIT_INTERRUPTED
    assert json.loads(lines[-1])["valid"] is False
    assert (tmp_path / "report.html").is_file()
    assert read_run(tmp_path).stopped_because == "interrupted"


def test_options_over_a_plan_and_the_plan_itself_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    invoke_sweep(tmp_path, Script(), monkeypatch)
    run = read_run(tmp_path)
    assert run.overrides == {"modes": ["eager", "compiled"], "batch_sizes": [1]}
    assert plan_of(read_plan_file(tmp_path / PLAN_FILE)[0]) == run.plan
    assert reproduce(run)[-1] == (
        "launchbound sweep --preset quick --seed 0 --modes eager,compiled --batch-sizes 1"
    )
    run.service = {"options": {}, "environment": {"LAUNCHBOUND_CONTEXT": "128", "LAUNCHBOUND_X": "a b"}}
    assert reproduce(run)[-1].startswith("LAUNCHBOUND_CONTEXT=128 LAUNCHBOUND_X='a b' launchbound sweep ")
    run.plan_from_file = True
    assert f"--plan {PLAN_FILE} " in reproduce(run)[-1]
    assert ("options over the plan", "modes ['eager', 'compiled'], batch_sizes [1]") in environment(
        read_results(tmp_path).run
    )


def test_a_service_that_only_fails_ends_the_sweep_early_with_its_gates_and_the_json_line_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, lines, _ = invoke_sweep(tmp_path, Script(fail_after=0), monkeypatch)
    assert code == EXIT_FAILED
    assert json.loads(lines[-1]) == {"path": str(tmp_path), "headline": None, "valid": False}
    assert any(line.startswith("FAILED  no errors") for line in lines[:-1])
    run, rows = read_run(tmp_path), read_rows(tmp_path)
    assert not run.complete
    assert "requests in a row failed" in (run.stopped_because or "")
    assert len(rows) == 10
    assert {(row.status, row.error) for row in rows} == {(500, "the engine broke")}


def test_an_unreachable_address_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "CONNECT_GRACE_SECONDS", 0.0)
    with fake_service(Script()) as url:
        address = url
    with pytest.raises(TargetError, match="nothing answers"):
        target.wait_until_ready(Target(address), SMALL, lambda _: None)
    with pytest.raises(TargetError, match="not an address"):
        Target("localhost")


def test_a_folder_that_holds_a_sweep_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "requests.jsonl").write_text("")
    with pytest.raises(TargetError, match="holds a sweep already"):
        swept(tmp_path, Script(), SMALL)


@pytest.mark.parametrize(("complete", "following"), [(True, "report"), (False, "sweep --resume")])
def test_a_report_that_finds_no_space_names_the_command_that_comes_next(
    complete: bool, following: str, tmp_path: Path
) -> None:
    make_results(tmp_path, plan=make_plan("quick", 1, ["eager", "compiled"], [1]), complete=complete)
    (tmp_path / "report.md").symlink_to("/dev/full")
    done = CliRunner().invoke(launchbound.app, ["report", str(tmp_path)])
    assert done.exit_code == EXIT_MACHINE
    assert f"`launchbound {following} {tmp_path}`" in done.stderr


# ---------------------------------------------------------------- by two load processes

CELLS = (
    Cell(mode="eager", batch_size=1, new_tokens=4, requests=4),
    Cell(mode="compiled", batch_size=1, new_tokens=4, requests=9, concurrency=3),
    Cell(mode="eager", batch_size=1, new_tokens=4, requests=8, load=0.1),
)
PLAN = Plan(preset="own", seed=3, rounds=2, cells=CELLS)


def load_processes() -> list[psutil.Process]:
    """The load processes that this process's sweeps have at the moment."""
    found: list[psutil.Process] = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # of those that other tests started one may just have ended
            if "loadtests.run.locust_users" in child.cmdline():
                found.append(child)
    return found


@pytest.fixture(scope="module")
def by_two(tmp_path_factory: pytest.TempPathFactory) -> tuple[SweepResult, Script]:
    """A sweep by two load processes that went well, and what the service saw."""
    script, folder = Script(api_key="secret"), tmp_path_factory.mktemp("by_two")
    status, cpus = fake_service_module.engine_status, {"cpus": [max(os.sched_getaffinity(0))]}

    def at_first_shared(*sizes: int) -> dict[str, object]:
        return status(*sizes) | cpus | {"sharing_note": None if script.headers else "pid 7"}

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("LAUNCHBOUND_API_KEY", "secret")
        patched.setattr(fake_service_module, "engine_status", at_first_shared)
        return swept(folder, script, PLAN, workers=2), script


def test_every_request_has_one_row_in_the_order_in_which_they_ended(
    by_two: tuple[SweepResult, Script],
) -> None:
    result, script = by_two
    rows = read_rows(result.folder)
    counts = Counter((row.cell, row.round) for row in rows if row.stage == "measure")
    assert counts == {(cell.name, number): cell.requests for cell in CELLS for number in range(1, 3)}
    assert [row.sequence for row in rows] == list(range(len(rows)))
    assert sorted(headers["x-request-id"] for headers in script.headers) == sorted(r.request_id for r in rows)
    assert failed(result) <= OF_TIME
    assert read_run(result.folder).engine["sharing_note"] == "pid 7"


def test_requests_are_spread_over_the_load_processes_of_which_the_run_tells(
    by_two: tuple[SweepResult, Script],
) -> None:
    for cell in CELLS:
        workers = Counter(row["worker"] for row in raw_rows(by_two[0].folder) if row["cell"] == cell.name)
        assert workers.keys() == {0, 1}
        assert min(workers.values()) >= 0.25 * workers.total()
    rows = [row for row in read_rows(by_two[0].folder) if row.load is not None and row.stage == "measure"]
    assert rows
    assert all(row.start >= row.intended_start for row in rows)
    run = read_run(by_two[0].folder)
    assert set(run.client.cpus).isdisjoint(run.engine["cpus"]) or len(os.sched_getaffinity(0)) == 1
    assert run.settings["workers"] == 2
    used = [one.client_cpu_seconds for one in run.machine_by_round]
    assert None not in used, "0 is possible: the kernel counts in hundredths of a second"
    assert any(used)


def killed(number: signal.Signals, *arguments: Any) -> Iterator[GeneratorEvent | None]:
    """The load generator's events; at the first request's end one of its load processes gets a signal.

    Early, because on a busy machine events are read long after they were sent.
    """
    sent = False
    for event in run_load_generator(*arguments):
        yield event
        if isinstance(event, RequestEnded) and not sent:
            load_processes()[0].send_signal(number)
            sent = True


@pytest.mark.parametrize(
    ("number", "said"),
    [(signal.SIGKILL, "ended with signal 9"), (signal.SIGSTOP, "no longer answers the load generator")],
    ids=["killed", "stopped"],
)
def test_a_load_process_that_is_lost_ends_the_sweep_which_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, said: str
) -> None:
    quiet = partial(Console, file=io.StringIO())
    with fake_service(Script()) as url:
        with monkeypatch.context() as patched:
            patched.setattr(sweep, "run_load_generator", partial(killed, number))
            first = run_sweep(url, PLAN, tmp_path, console=quiet(), exporter_port=0, workers=2)
        assert said in (first.run.stopped_because or "")
        kept = read_rows(tmp_path)
        assert kept
        assert all(row.ok for row in kept)
        assert not load_processes()
        if number == signal.SIGSTOP:
            return  # how it goes on is the same
        second = resume_sweep(url, tmp_path, console=quiet(), exporter_port=0)
    rows = read_rows(tmp_path)
    assert rows[: len(kept)] == kept
    assert second.run.complete
    assert second.run.settings["workers"] == 2
    assert {row["worker"] for row in raw_rows(tmp_path) if row["part"] == 2} == {0, 1}
    counts = Counter((row.cell, row.round) for row in rows if row.stage == "measure")
    assert counts == {(cell.name, number): cell.requests for cell in CELLS for number in range(1, 3)}


def test_load_processes_keep_off_the_engines_cores_and_end_with_the_load_generator(tmp_path: Path) -> None:
    avoided = max(os.sched_getaffinity(0))
    allowed = os.sched_getaffinity(0) - {avoided} or {avoided}
    with fake_service(Script()) as url:
        assignment = Assignment(
            run="a", url=url, folder=str(tmp_path), plan=PLAN, avoid_cpus=[avoided], workers=2
        )
        events = run_load_generator(assignment, tmp_path / "log")
        assert isinstance(next(event for event in events if event is not None), GeneratorStarted)
        started = load_processes()
        assert [set(process.cpu_affinity()) for process in started] == [allowed, allowed]
        (generator,) = {process.ppid() for process in started}
        os.kill(generator, signal.SIGKILL)
        until(lambda: all(gone(process.pid) for process in started), "the end of the load processes")
        events.close()
