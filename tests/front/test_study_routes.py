"""The routes of studies, their process faked: typed bodies, events, findings and files by id, probes."""

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
from service.front.errors import NotFound
from service.front.routes import studies
from service.front.schemas import STUDY_BODIES
from service.front.study_runner import Findings, StudyResult
from service.study_names import PROBES
from tests.front.test_studies import Place, place
from tests.support.fake_anatomy import TRACE_FILE
from tests.support.serving import events as events_of
from tests.support.serving import refused, until

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
    for file in ("studies", "holding"):
        (shared.folder / file).unlink(missing_ok=True)
    return shared


def post(here: Place, name: str, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
    given = {**NEEDED.get(name, {}), **body}
    return here.front.http.post(f"/v1/studies/{name}", json=given, headers=headers)


def received(here: Place) -> list[tuple[str, dict[str, Any]]]:
    path = here.folder / "studies"
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def events(text: str) -> list[tuple[str, dict[str, Any]]]:
    return list(events_of(text.splitlines()))


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
        ("operators", {"batch_size": 0}, 422, "batch_size"),
        ("operators", {"phase": "forward"}, 422, "phase"),
        ("operator", {"expression": "torch.load(a, b)"}, 422, "expression"),
        ("layers", {"operations": []}, 422, "operations"),
        ("tape", {"expression": "x.backward()"}, 422, "expression"),
        ("timeline", {"against": "fast"}, 404, "against"),
        ("budget", {"modes": ["eager", "fast"]}, 404, "modes"),
        ("budget", {"batch_sizes": [1, 5]}, 422, "batch_sizes"),
        ("budget", {"kernel_microseconds": 0}, 422, "kernel_microseconds"),
        ("memory", {"snapshot": True}, 422, "snapshot"),
    ],
)
def test_what_is_out_of_bounds_is_refused_before_the_engine_pauses(
    here: Place, name: str, fields: dict[str, Any], status: int, param: str
) -> None:
    for headers in ({}, EVENTS):
        assert refused(post(here, name, headers, **fields), status)["param"] == param
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


@pytest.mark.parametrize(
    ("accept", "as_events"),
    [("application/json", False), ("*/*", False), ("application/json;q=0.5, text/event-stream;q=0.9", True)],
)
def test_events_come_where_they_are_asked_for(here: Place, accept: str, as_events: bool) -> None:
    answer = post(here, "tape", {"Accept": accept})
    assert (answer.content == FOUND) != as_events
    assert not as_events or events(answer.text)[-1][0] == "finding"


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
    denied = post(here, "layers", EVENTS)
    assert refused(denied, 409)["type"] == "anatomy_busy"
    assert int(denied.headers["retry-after"]) > 0
    here.go()
    assert study.result().status_code == 200


def test_a_silent_study_is_heard_of_by_comments(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studies, "HEARTBEAT_SECONDS", 0.01)
    here.hold()
    with here.front.http.stream("POST", "/v1/studies/tape", json={}, headers=EVENTS) as answer:
        lines = answer.iter_lines()
        assert next(line for line in lines if line.startswith(":"))
        here.go()
        assert "event: finding" in list(lines)


def test_to_hang_up_in_the_middle_of_events_ends_the_study_and_the_engine_serves(here: Place) -> None:
    assert post(here, "tape").status_code == 200
    process = psutil.Process(here.pids()[-1])
    here.hold()
    with here.front.http.stream("POST", "/v1/studies/tape", json={}, headers=EVENTS) as answer:
        lines = answer.iter_lines()  # without a name it would be closed, and the connection with it
        assert next(lines) == "event: progress"
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
    here.hold()
    name, problem = events(post(here, "budget", EVENTS).text)[-1]
    assert (name, problem["error"]["type"]) == ("error", "timeout")
    assert "fewer rounds" in problem["error"]["message"]
    assert here.front.generate().status_code == 200


def test_a_file_is_downloaded_by_id_and_leaves_no_folder(here: Place) -> None:
    answer = post(here, "timeline")
    assert answer.status_code == 200, answer.text
    folder = Path(received(here)[0][1]["out"])
    assert not folder.exists()
    entry = here.front.http.get("/v1/studies").json()["studies"][0]
    assert entry["files"] == [TRACE_FILE]
    file = here.front.http.get(f"{answer.headers['location']}/files/{TRACE_FILE}")
    assert (file.status_code, file.content) == (200, bytes(5))
    assert file.headers["content-type"] == "application/octet-stream"
    assert file.headers["content-disposition"] == f'attachment; filename="{entry["id"]}-{TRACE_FILE}"'
    assert file.headers["x-content-type-options"] == "nosniff"
    assert refused(here.front.http.get(f"{answer.headers['location']}/files/other"), 404)["param"] == "name"
    assert refused(here.front.http.get(f"/v1/studies/none-1/files/{TRACE_FILE}"), 404)["param"] == "id"


def test_without_the_key_no_study_finding_or_file_is_had_and_no_sweep_blocks_one(tmp_path: Path) -> None:
    with place(tmp_path, {"api_key": "secret"}) as here:
        for name in STUDY_BODIES:
            refused(post(here, name, EVENTS), 401)
        for path in ("", "/tape-1", f"/tape-1/files/{TRACE_FILE}"):
            refused(here.front.http.get(f"/v1/studies{path}"), 401)
        assert here.pids() == []
        here.front.generate(headers={"X-Launchbound-Run": "1"})
        assert post(here, "operators", {"Authorization": "Bearer secret"}).status_code == 200


ANATOMY = "/v1/modes/eager/anatomy"


@pytest.mark.slow
def test_a_finding_is_read_again_and_no_get_runs_a_study(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        get = here.front.http.get
        unknown = refused(get(f"{ANATOMY}?batch_size=3"), 404)
        assert unknown["type"] == "not_studied"
        assert "POST" in unknown["message"]
        assert "/v1/studies/operators" in unknown["message"]
        assert get("/v1/studies").json() == {"studies": []}
        assert here.pids() == []
        first, second = here.study(batch_size=3), here.study(batch_size=4)
        for path in (second.headers["location"], f"{ANATOMY}?batch_size=2", f"{ANATOMY}?batch_size=4"):
            assert (get(path).status_code, get(path).content) == (200, second.content)
        assert get(f"{ANATOMY}?batch_size=4").headers["content-location"] == second.headers["location"]
        assert get(first.headers["location"]).status_code == 200
        newest, _ = get("/v1/studies").json()["studies"]
        assert newest["arguments"] == {"mode": "eager", "batch_size": 4, "phase": "decode"}
        assert second.headers["location"] == f"/v1/studies/{newest['id']}"
        refused(get(ANATOMY), 404)
        assert len((here.folder / "studies").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("path", "status", "param"),
    [
        ("/v1/modes/fast/anatomy", 404, "mode"),
        (f"{ANATOMY}?batch_size=5", 422, "batch_size"),
        (f"{ANATOMY}?phase=train", 422, "phase"),
        ("/v1/studies/operators-7", 404, "id"),
    ],
)
def test_bad_questions_about_findings_are_refused(here: Place, path: str, status: int, param: str) -> None:
    assert refused(here.front.http.get(path), status)["param"] == param


def test_the_probes_are_listed_with_what_each_teaches(here: Place) -> None:
    listed = here.front.http.get("/v1/probes").json()["probes"]
    assert [probe["name"] for probe in listed] == list(PROBES)
    assert len(listed) >= 10
    assert all(probe["teaches"] for probe in listed)


def test_a_probe_is_run_by_its_name_and_an_unknown_one_is_refused_with_the_names(here: Place) -> None:
    assert here.front.http.post("/v1/probes/sync-point").status_code == 200
    assert json.loads((here.folder / "studies").read_text()) == ["probes", {"name": "sync-point"}]
    detail = refused(here.front.http.post("/v1/probes/nothing"), 404)
    assert detail["type"] == "not_found"
    assert "graph-break" in detail["message"]
    unknown = refused(here.front.http.post("/v1/studies/probes", json={}), 404)
    assert "operators, operator, layers" in unknown["message"]


# ---------------------------------------------------------------- kept findings


def test_bytes_are_bounded_with_those_of_files_but_the_newest_always_stays() -> None:
    findings = Findings(most_bytes=100)
    findings.keep("tape", {}, StudyResult(bytes(40)))
    findings.keep("timeline", {}, StudyResult(bytes(10), {}, {"trace": bytes(50)}))
    assert [kept.study for kept in findings] == ["timeline", "tape"]
    findings.keep("tape", {}, StudyResult(b"{}"))
    assert [kept.study for kept in findings] == ["tape", "timeline"]
    findings.keep("memory", {}, StudyResult(b"{}", {}, {"snapshot": bytes(500)}))
    assert [kept.study for kept in findings] == ["memory"]
    with pytest.raises(NotFound, match="GET /v1/studies lists"):
        findings.by_id("tape-1")


def test_the_folder_of_a_study_whose_front_was_killed_goes_at_the_next_start_and_no_other_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_runner.tempfile, "tempdir", str(tmp_path))
    dies = (
        "import os\n"
        "from service.front.study_runner import folder_for_files\n"
        "with folder_for_files():\n"
        "    os._exit(9)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    assert subprocess.run([sys.executable, "-c", dies], env=environment, check=False).returncode == 9
    assert len(list(tmp_path.iterdir())) == 1
    other = tmp_path / "launchbound-notes"
    other.mkdir()
    with study_runner.folder_for_files() as running:
        study_runner.remove_abandoned_folders()
        assert sorted(tmp_path.iterdir()) == sorted([other, running])
