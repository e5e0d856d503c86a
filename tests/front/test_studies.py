"""Every study by HTTP, its process faked: typed bodies, events, files by id, and what ends with what."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from service.front import study_runner
from service.front.routes import studies
from service.front.schemas import STUDY_BODIES
from tests.front.test_anatomy_process import Place, error, place
from tests.support.fake_anatomy import TRACE_FILE
from tests.support.serving import until

pytestmark = pytest.mark.slow

EVENTS = {"Accept": "text/event-stream"}
FOUND = b'{"operators":[],"order":1}'
MODE = {"mode": "eager"}
NEEDED: dict[str, dict[str, Any]] = {"operators": MODE}
"""Fields without a default."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("fakes")) as made:
        yield made


@pytest.fixture
def here(shared: Place) -> Place:
    """The module's front, whose fake study does as it does without a command."""
    shared.command("ok")
    (shared.folder / "studies").unlink(missing_ok=True)
    return shared


def post(here: Place, name: str, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
    given = {**NEEDED.get(name, {}), **body}
    return here.front.http.post(f"/v1/studies/{name}", json=given, headers=headers)


def received(here: Place) -> list[tuple[str, dict[str, Any]]]:
    path = here.folder / "studies"
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def events(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Names and data of the events in a stream; comments are skipped."""
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    found = []
    for block in blocks:
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


@pytest.mark.parametrize("name", STUDY_BODIES)
def test_each_study_is_run_with_its_defaults_and_its_finding_read_again(here: Place, name: str) -> None:
    answer = post(here, name)
    assert (answer.status_code, answer.content) == (200, FOUND)
    ((ran, arguments),) = received(here)
    assert ran == name
    assert arguments.items() >= NEEDED.get(name, {}).items()
    get = here.front.http.get
    entry = get("/v1/studies").json()["studies"][0]
    assert answer.headers["location"] == f"/v1/studies/{entry['id']}"
    assert (entry["study"], get(answer.headers["location"]).content) == (name, FOUND)
    assert not entry["arguments"].keys() & {"out", "page"}
    assert len(received(here)) == 1


@pytest.mark.parametrize(
    ("name", "fields", "status", "param"),
    [
        ("operators", {"mode": "fast"}, 404, "mode"),
        ("operators", {"native": 1}, 422, "native"),
        ("operator", {"expression": "torch.load(a, b)"}, 422, "expression"),
        ("operator", {"expression": "x" * 100}, 422, "expression"),
        ("operator", {"size": 1025}, 422, "size"),
        ("operator", {"dtype": "float64"}, 422, "dtype"),
        ("operator", {"grad": "off"}, 422, "grad"),
        ("operator", {"requires_grad": None}, 422, "requires_grad"),
        ("operator", {"rounds": 1000}, 422, "rounds"),
        ("layers", {"operations": []}, 422, "operations"),
        ("layers", {"operations": ["sort"]}, 422, "operations"),
        ("layers", {"sizes": [8] * 9}, 422, "sizes"),
        ("layers", {"sizes": [0]}, 422, "sizes"),
        ("tape", {"expression": "x.backward()"}, 422, "expression"),
        ("tape", {"batch_size": 5}, 422, "batch_size"),
        ("timeline", {"against": "fast"}, 404, "against"),
        ("timeline", {"out": "/tmp"}, 422, "out"),
        ("timeline", {"page": True}, 422, "page"),
        ("budget", {"modes": ["eager", "fast"]}, 404, "modes"),
        ("budget", {"batch_sizes": [1, 5]}, 422, "batch_sizes"),
        ("budget", {"batch_sizes": []}, 422, "batch_sizes"),
        ("budget", {"kernel_microseconds": 0}, 422, "kernel_microseconds"),
        ("budget", {"ops_per_step": 10**9}, 422, "ops_per_step"),
        ("memory", {"out": "/tmp"}, 422, "out"),
        ("memory", {"snapshot": True}, 422, "snapshot"),
        ("rms-norm", {"rows": 65536}, 422, "rows"),
        ("rms-norm", {"width": 0}, 422, "width"),
    ],
)
def test_what_is_out_of_bounds_is_refused_before_the_engine_pauses(
    here: Place, name: str, fields: dict[str, Any], status: int, param: str
) -> None:
    for headers in ({}, EVENTS):
        assert error(post(here, name, headers, **fields), status)["param"] == param
    assert received(here) == []


def test_batches_are_run_and_kept_as_their_buckets(here: Place) -> None:
    assert post(here, "budget", batch_sizes=[1, 2, 3], batch_size=2).status_code == 200
    assert received(here)[0][1]["batch_sizes"] == [1, 4, 4]
    kept = here.front.http.get("/v1/studies").json()["studies"][0]["arguments"]
    assert (kept["batch_sizes"], kept["batch_size"]) == ([1, 4, 4], 4)


def test_events_are_progress_and_then_the_finding_with_what_names_it(here: Place) -> None:
    answer = post(here, "layers", EVENTS, sizes=[8])
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    *before, (name, data) = events(answer.text)
    assert name == "finding"
    assert {name for name, _ in before} == {"progress"}
    assert all(data.keys() == {"message", "done", "total"} for _, data in before)
    assert before[0][1] == {"message": "waiting for the engine to pause", "done": None, "total": None}
    assert before[-1][1] == {"message": "measuring nothing", "done": 0, "total": 2}
    assert data.keys() == {"id", "study", "arguments", "created", "finding"}
    assert (data["study"], data["arguments"]["sizes"]) == ("layers", [8])
    assert data["finding"] == here.front.http.get(f"/v1/studies/{data['id']}").json()


@pytest.mark.parametrize("accept", ["application/json", "*/*", "text/event-streams"])
def test_who_does_not_ask_for_events_gets_the_finding(here: Place, accept: str) -> None:
    assert post(here, "tape", {"Accept": accept}).content == FOUND


def test_events_are_also_asked_for_among_other_kinds(here: Place) -> None:
    accept = "application/json;q=0.5, text/event-stream;q=0.9"
    assert events(post(here, "tape", {"Accept": accept}).text)[-1][0] == "finding"


@pytest.mark.parametrize("command", ["refuse unsupported_here", "refuse study_failed"])
def test_a_study_that_fails_ends_its_events_with_the_same_problem_as_without(
    here: Place, command: str
) -> None:
    here.command(command)
    plain = post(here, "memory")
    name, problem = events(post(here, "memory", EVENTS).text)[-1]
    assert name == "error"
    assert problem == plain.json()
    assert plain.status_code in (422, 500)


def test_what_is_not_admitted_is_a_plain_error_also_for_who_asks_for_events(here: Place) -> None:
    study = here.held()
    refused = post(here, "layers", EVENTS)
    assert error(refused, 409)["type"] == "anatomy_busy"
    assert int(refused.headers["retry-after"]) > 0
    here.go()
    assert study.result().status_code == 200


def test_a_silent_study_is_heard_of_by_comments(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studies, "HEARTBEAT_SECONDS", 0.01)
    here.command("hold")
    (here.folder / "go").unlink(missing_ok=True)
    with here.front.http.stream("POST", "/v1/studies/tape", json={}, headers=EVENTS) as answer:
        lines = answer.iter_lines()
        assert next(line for line in lines if line.startswith(":"))
        here.go()
        assert "event: finding" in list(lines)


def test_to_hang_up_in_the_middle_of_events_ends_the_study_and_the_engine_serves(here: Place) -> None:
    assert post(here, "tape").status_code == 200
    process = psutil.Process(here.pids()[-1])
    here.command("hold")
    (here.folder / "go").unlink(missing_ok=True)
    with here.front.http.stream("POST", "/v1/studies/tape", json={}, headers=EVENTS) as answer:
        assert next(answer.iter_lines()) == "event: progress"
        until((here.folder / "holding").exists, "the study to begin")
    until(lambda: not process.is_running(), "the end of its process")
    assert here.front.generate().status_code == 200
    here.command("ok")
    assert post(here, "tape").status_code == 200


def test_a_study_over_its_time_is_given_up_with_what_to_change(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = here.front.state.studies
    brief = runner._settings.model_copy(update={"hang_seconds": 0.0})
    monkeypatch.setattr(runner, "_settings", brief)
    here.command("hold")
    (here.folder / "go").unlink(missing_ok=True)
    name, problem = events(post(here, "budget", EVENTS).text)[-1]
    assert (name, problem["error"]["type"]) == ("error", "timeout")
    assert "fewer rounds" in problem["error"]["message"]
    assert here.front.generate().status_code == 200


def test_a_file_is_downloaded_by_id_and_leaves_no_folder(here: Place) -> None:
    answer = post(here, "timeline")
    folder = Path(received(here)[0][1]["out"])
    assert not folder.exists()
    entry = here.front.http.get("/v1/studies").json()["studies"][0]
    assert entry["files"] == [TRACE_FILE]
    file = here.front.http.get(f"{answer.headers['location']}/files/{TRACE_FILE}")
    assert (file.status_code, file.content) == (200, bytes(5))
    assert file.headers["content-type"] == "application/gzip"
    assert file.headers["content-disposition"] == f'attachment; filename="{entry["id"]}-{TRACE_FILE}"'
    assert file.headers["x-content-type-options"] == "nosniff"
    assert error(here.front.http.get(f"{answer.headers['location']}/files/other"), 404)["param"] == "name"
    assert error(here.front.http.get(f"/v1/studies/none-1/files/{TRACE_FILE}"), 404)["param"] == "id"


def test_a_file_over_the_bound_is_left_out_and_this_is_said(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_runner, "MOST_FILE_BYTES", 99)
    here.command("write 100")
    answer = post(here, "timeline")
    assert answer.content == FOUND
    entry = here.front.http.get("/v1/studies").json()["studies"][0]
    assert entry["files"] == []
    assert "over the bound of 99" in entry["files_left_out"][TRACE_FILE]
    missing = error(here.front.http.get(f"{answer.headers['location']}/files/{TRACE_FILE}"), 404)
    assert missing["type"] == "file_left_out"


def test_a_sweep_keeps_every_study_away_with_the_reason(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        here.front.generate(headers={"X-Launchbound-Run": "1"})
        for name in STUDY_BODIES:
            refused = error(post(here, name, EVENTS), 409)
            assert refused["type"] == "run_in_progress"
            assert "sweep" in refused["message"]
        assert here.pids() == []


def test_no_study_finding_or_file_is_had_without_the_key(tmp_path: Path) -> None:
    with place(tmp_path, {"api_key": "secret"}) as here:
        for name in STUDY_BODIES:
            error(post(here, name, EVENTS), 401)
        for path in ("", "/tape-1", f"/tape-1/files/{TRACE_FILE}"):
            error(here.front.http.get(f"/v1/studies{path}"), 401)
        assert here.pids() == []


def test_the_folder_of_a_study_whose_front_was_killed_goes_at_the_next_start_and_no_other_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_runner.tempfile, "tempdir", str(tmp_path))
    writes_and_waits = (
        "import asyncio\n"
        "from service.front.study_runner import folder_for_files\n"
        "async def study() -> None:\n"
        "    async with folder_for_files(True) as folder:\n"
        "        (folder / 'trace.json').write_text('{}')\n"
        "        print(folder, flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(study())\n"
    )
    fronts = [
        subprocess.Popen(
            [sys.executable, "-c", writes_and_waits],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )
        for _ in range(2)
    ]
    try:
        killed, running = (Path(str(front.stdout and front.stdout.readline()).strip()) for front in fronts)
        fronts[0].kill()
        fronts[0].wait()
        other = tmp_path / "launchbound-notes"
        other.mkdir()
        assert killed.exists()
        study_runner.remove_abandoned_folders()
        assert sorted(tmp_path.iterdir()) == sorted([other, running])
        assert (running / "trace.json").exists()
    finally:
        for front in fronts:
            front.kill()
            front.communicate()
