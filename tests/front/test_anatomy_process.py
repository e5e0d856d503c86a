"""Studies by HTTP with both processes faked: when they may run, what waits, and what ends with what."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from service.front import study_runner
from service.study_names import NOT_ON_CPU, PROBES
from tests.support.serving import Front, running, until

pytestmark = pytest.mark.slow

STUDY = "/v1/studies/operators"
ANATOMY = "/v1/modes/eager/anatomy"


class Place:
    """A front with fakes behind it, the folder that commands one of them, and threads to call from."""

    def __init__(self, front: Front, folder: Path, threads: ThreadPoolExecutor) -> None:
        self.front = front
        self.folder = folder
        self._threads = threads

    def study(self, **body: object) -> httpx.Response:
        return self.front.http.post(STUDY, json={"mode": "eager", **body})

    def meanwhile(self, call: Callable[..., httpx.Response], *arguments: Any) -> Future[httpx.Response]:
        return self._threads.submit(call, *arguments)

    def command(self, text: str) -> None:
        (self.folder / "command").write_text(text)

    def held(self) -> Future[httpx.Response]:
        """A study that is under way until `go`."""
        self.command("hold")
        (self.folder / "holding").unlink(missing_ok=True)
        (self.folder / "go").unlink(missing_ok=True)
        study = self.meanwhile(self.study)
        until((self.folder / "holding").exists, "the study to begin")
        return study

    def go(self) -> None:
        (self.folder / "go").touch()

    def pids(self) -> list[int]:
        path = self.folder / "pids"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def progress(self) -> str:
        return (self.folder / "holding").read_text()


@contextmanager
def place(folder: Path, settings: dict[str, Any] | None = None, **options: object) -> Iterator[Place]:
    with running(settings, anatomy=folder, **options) as front, ThreadPoolExecutor(4) as threads:
        if not options:
            front.await_ready()
        else:
            until(lambda: front.state.client.engine, "the engine")
        try:
            yield Place(front, folder, threads)
        finally:
            (folder / "go").touch()


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Place]:
    with place(tmp_path) as made:
        yield made


def error(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    detail: dict[str, Any] = answer.json()["error"]
    return detail


def test_the_finding_leaves_as_the_anatomy_process_made_it_with_the_time_it_took(here: Place) -> None:
    answer = here.study(batch_size=4, phase="prefill")
    assert answer.status_code == 200
    assert answer.content == b'{"operators":[],"order":1}'
    assert [part.split(";")[0] for part in answer.headers["server-timing"].split(", ")] == [
        "wait",
        "start",
        "study",
        "suspended",
    ]
    received = json.loads((here.folder / "studies").read_text())
    assert received == ["operators", {"mode": "eager", "batch_size": 4, "phase": "prefill"}]


def test_a_finding_is_read_again_and_no_get_runs_a_study(here: Place) -> None:
    get = here.front.http.get
    unknown = error(get(f"{ANATOMY}?batch_size=3"), 404)
    assert unknown["type"] == "not_studied"
    assert "POST" in unknown["message"]
    assert "/v1/studies/operators" in unknown["message"]
    assert get("/v1/studies").json() == {"studies": [], "given_up": 0}
    assert here.pids() == []
    first, second = here.study(batch_size=3), here.study(batch_size=4)
    for path in (second.headers["location"], f"{ANATOMY}?batch_size=2", f"{ANATOMY}?batch_size=4"):
        assert (get(path).status_code, get(path).content) == (200, second.content)
    assert get(f"{ANATOMY}?batch_size=4").headers["content-location"] == second.headers["location"]
    assert get(first.headers["location"]).status_code == 200
    newest, _ = get("/v1/studies").json()["studies"]
    assert newest["arguments"] == {"mode": "eager", "batch_size": 4, "phase": "decode"}
    assert second.headers["location"] == f"/v1/studies/{newest['id']}"
    error(get(ANATOMY), 404)
    assert len((here.folder / "studies").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("path", "status", "param"),
    [
        ("/v1/modes/fast/anatomy", 404, "mode"),
        (f"{ANATOMY}?batch_size=5", 422, "batch_size"),
        (f"{ANATOMY}?batch_size=x", 422, "batch_size"),
        (f"{ANATOMY}?phase=train", 422, "phase"),
        ("/v1/studies/operators-7", 404, "id"),
    ],
)
def test_bad_questions_about_findings_are_refused(here: Place, path: str, status: int, param: str) -> None:
    assert error(here.front.http.get(path), status)["param"] == param


def test_a_study_that_is_not_served_is_a_404_that_names_what_is(here: Place) -> None:
    detail = error(here.front.http.post("/v1/studies/probes", json={}), 404)
    assert "operators, operator, layers" in detail["message"]


@pytest.mark.parametrize(
    "send",
    [
        lambda front, headers: front.http.get("/v1/modes", headers=headers),
        lambda front, headers: front.http.get("/nothing", headers=headers),
        lambda front, headers: front.generate(headers=headers, max_new_tokens=0),
        lambda front, headers: front.generate("fast", headers=headers),
    ],
)
def test_a_sweeps_header_alone_blocks_no_study(
    here: Place, send: Callable[[Front, dict[str, str]], httpx.Response]
) -> None:
    send(here.front, {"X-Launchbound-Run": "1"})
    assert here.study().status_code == 200


def test_the_process_is_started_by_the_first_study_and_kept_for_the_next(here: Place) -> None:
    assert here.pids() == []
    for _ in range(3):
        assert here.study().status_code == 200
    assert len(here.pids()) == 1


def test_a_request_during_a_study_waits_for_its_end_and_is_answered(here: Place) -> None:
    study = here.held()
    assert here.front.http.get("/health/live").json()["engine_paused"] is True
    request = here.meanwhile(here.front.generate)
    until(lambda: here.front.state.client.in_progress().total() == 1, "the request to be admitted")
    before = here.progress()
    until(lambda: here.progress() != before, "the study to go on")
    assert not request.done()
    assert here.front.series()["queue_depth"] == 1
    here.go()
    assert study.result().status_code == 200
    assert request.result().status_code == 200
    assert here.front.series()["queue_depth"] == 0
    assert here.front.http.get("/health/live").json()["engine_paused"] is False


def test_requests_wait_for_a_study_up_to_the_admission_bound(tmp_path: Path) -> None:
    with place(tmp_path, {"max_queue": 1}) as here:
        study = here.held()
        request = here.meanwhile(here.front.generate)
        until(lambda: here.front.state.client.in_progress().total() == 1, "the request to be admitted")
        assert error(here.front.generate(), 429)["type"] == "queue_full"
        here.go()
        assert request.result().status_code == study.result().status_code == 200


def test_requests_sent_before_a_study_run_before_it(here: Place) -> None:
    running_one = here.meanwhile(here.front.command, "!hold")
    until(lambda: here.front.state.client.in_progress().total() == 1, "the request to be admitted")
    study = here.meanwhile(here.study)
    until(lambda: here.front.state.client.pause.lost is not None, "the study to be admitted")
    assert here.pids() == []
    assert here.front.command("!release").status_code == 200
    assert running_one.result().status_code == 200
    assert study.result().status_code == 200


def test_a_request_that_has_waited_enough_suspends_the_study_which_then_goes_on(tmp_path: Path) -> None:
    with place(tmp_path, {"anatomy_pause_seconds": 0.05}) as here:
        study = here.held()
        pid = here.pids()[0]
        answers = [here.front.generate() for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert not study.done()
        before = here.progress()
        until(lambda: here.progress() != before, "the study to go on")
        here.go()
        suspended = study.result().headers["server-timing"].rpartition("dur=")[2]
        assert float(suspended) > 0
        assert here.pids() == [pid]


def test_nothing_of_the_process_runs_while_it_is_suspended(tmp_path: Path) -> None:
    with place(tmp_path, {"anatomy_pause_seconds": 0.05}) as here:
        study = here.held()
        process = psutil.Process(here.pids()[0])
        request = here.meanwhile(here.front.command, f"!hold {tmp_path / 'enough'}")
        until(lambda: process.status() == psutil.STATUS_STOPPED, "the suspension")
        before = here.progress()
        assert process.status() == psutil.STATUS_STOPPED
        assert here.progress() == before
        (tmp_path / "enough").touch()
        assert request.result().status_code == 200
        here.go()
        assert study.result().status_code == 200


def test_a_second_study_at_a_time_is_refused_with_retry_after(here: Place) -> None:
    study = here.held()
    refused = here.study()
    assert error(refused, 409)["type"] == "anatomy_busy"
    assert int(refused.headers["retry-after"]) > 0
    here.go()
    assert study.result().status_code == 200
    assert here.study().status_code == 200


@pytest.mark.parametrize("path", ["/v1/compare", "/v1/modes/eager/generate"])
def test_a_study_is_refused_during_a_run_and_until_some_time_after_its_last_request(
    here: Place, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {"X-Launchbound-Run": "20260101-1"}
    body = {"prompts": ["def mean(values):"], "max_new_tokens": 4}
    assert here.front.http.post(path, json=body, headers=headers).status_code == 200
    refused = here.study()
    assert error(refused, 409)["type"] == "run_in_progress"
    assert 0 < int(refused.headers["retry-after"]) <= study_runner.RUN_SECONDS
    assert here.pids() == []
    monkeypatch.setattr(study_runner, "RUN_SECONDS", 0.0)
    assert here.study().status_code == 200


def test_a_request_of_a_run_in_progress_counts_until_it_ends(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    running_one = here.meanwhile(
        lambda: here.front.generate(headers={"X-Launchbound-Run": "1"}, prompts=["!hold"])
    )
    until(lambda: here.front.state.client.in_progress().total() == 1, "the request to be admitted")
    assert error(here.study(), 409)["type"] == "run_in_progress"
    assert here.front.command("!release").status_code == 200
    assert running_one.result().status_code == 200
    monkeypatch.setattr(study_runner, "RUN_SECONDS", 0.0)
    assert here.study().status_code == 200


def test_a_run_that_begins_ends_the_study_and_its_process(here: Place) -> None:
    study = here.held()
    process = psutil.Process(here.pids()[0])
    answer = here.front.generate(headers={"X-Launchbound-Run": "20260101-1"})
    assert answer.status_code == 200
    assert error(study.result(), 409)["type"] == "run_in_progress"
    assert not process.is_running()


@pytest.mark.parametrize(("command", "reason"), [("die", "exit code 7"), ("garbage", "cannot be decoded")])
def test_a_process_that_breaks_is_a_clear_503_and_the_next_call_starts_another(
    here: Place, command: str, reason: str
) -> None:
    here.command(command)
    answer = here.study()
    detail = error(answer, 503)
    assert detail["type"] == "study_interrupted"
    assert reason in detail["message"]
    assert int(answer.headers["retry-after"]) > 0
    assert here.front.generate().status_code == 200
    here.command("ok")
    assert here.study().status_code == 200
    assert len(set(here.pids())) == 2


def test_a_process_that_cannot_start_is_reported(here: Place) -> None:
    here.command("exit-at-start 2")
    assert "exit code 2" in error(here.study(), 503)["message"]
    assert here.front.generate().status_code == 200


@pytest.mark.parametrize(
    ("type_", "status"),
    [("invalid_request", 422), ("unsupported_here", 422), ("unknown_mode", 404), ("study_failed", 500)],
)
def test_what_a_study_is_refused_with_has_its_status_and_leaves_the_process_alone(
    here: Place, type_: str, status: int
) -> None:
    here.command(f"refuse {type_}")
    assert error(here.study(), status) == {"type": type_, "message": "as commanded", "param": "mode"}
    here.command("ok")
    assert here.study().status_code == 200
    assert len(here.pids()) == 1


def test_the_process_ends_in_order_after_some_time_without_a_study(tmp_path: Path) -> None:
    with place(tmp_path, {"anatomy_idle_seconds": 0.0}) as here:
        assert here.study().status_code == 200
        until((tmp_path / "stopped").exists, "the end of the process")
        until(lambda: not psutil.pid_exists(here.pids()[0]), "the end of the process")
        assert here.study().status_code == 200
        assert len(here.pids()) == 2


def test_the_process_ends_with_the_front_in_order(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        assert here.study().status_code == 200
        pid = here.pids()[0]
    assert (tmp_path / "stopped").exists()
    assert not psutil.pid_exists(pid)


def test_a_study_in_progress_ends_where_the_service_drains(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        study = here.held()
        pid = here.pids()[0]
        client = here.front.state.client
        loop = client.pause.lost.get_loop() if client.pause.lost else None
        assert loop is not None
        loop.call_soon_threadsafe(client.abandon)
        assert error(study.result(), 503)["type"] == "shut_down"
        assert error(here.study(), 503)["type"] == "draining"
        assert not psutil.pid_exists(pid)


def test_an_engine_that_ends_during_a_study_ends_it(here: Place) -> None:
    study = here.held()
    engine = here.front.state.supervisor.pid
    assert engine is not None
    os.kill(engine, 9)
    assert error(study.result(), 503)["type"] == "engine_lost"
    here.front.await_ready()
    here.command("ok")
    assert here.study().status_code == 200


def test_a_client_that_goes_away_ends_its_study_and_the_engine_serves(here: Place) -> None:
    here.command("hold")
    with pytest.raises(httpx.ReadTimeout):
        here.front.http.post(STUDY, json={"mode": "eager"}, timeout=0.5)
    assert here.front.generate().status_code == 200
    until(lambda: here.pids() == [] or not psutil.pid_exists(here.pids()[0]), "the end of the process")


def test_a_pause_that_did_not_hold_is_an_error_and_not_a_finding(tmp_path: Path) -> None:
    with place(tmp_path, pause_fails=True) as here:
        here.command("hold")
        assert error(here.study(), 503)["type"] == "study_interrupted"
        here.command("ok")
        assert here.study().status_code == 200


def test_while_a_mode_is_on_its_way_a_study_is_refused(tmp_path: Path) -> None:
    with place(tmp_path, states={"compiled": "warming"}) as here:
        assert error(here.study(), 503)["type"] == "warming"
        here.front.command("!state compiled failed")
        assert here.study().status_code == 200


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"mode": "fast"}, 404, "mode"),
        ({"mode": None}, 422, "mode"),
        ({"batch_size": 5}, 422, "batch_size"),
        ({"batch_size": 0}, 422, "batch_size"),
        ({"batch_size": "x"}, 422, "batch_size"),
        ({"phase": "train"}, 422, "phase"),
        ({"model": "tiny"}, 422, "model"),
    ],
)
def test_bad_questions_are_refused_before_anything_is_started(
    here: Place, fields: dict[str, object], status: int, param: str
) -> None:
    assert error(here.study(**fields), status)["param"] == param
    assert here.pids() == []
    assert here.front.series()['requests_total{mode="eager",outcome="rejected"}'] == 0


def test_the_probes_are_listed_with_what_each_teaches(here: Place) -> None:
    listed = here.front.http.get("/v1/probes").json()["probes"]
    assert [probe["name"] for probe in listed] == list(PROBES)
    assert len(listed) >= 10
    assert all(probe["teaches"] for probe in listed)
    assert {p["name"]: p["not_on_cpu"] for p in listed if p["not_on_cpu"]} == NOT_ON_CPU


def test_a_probe_is_run_by_its_name_and_an_unknown_one_is_refused_with_the_names(here: Place) -> None:
    assert here.front.http.post("/v1/probes/sync-point").status_code == 200
    assert json.loads((here.folder / "studies").read_text()) == ["probes", {"name": "sync-point"}]
    detail = error(here.front.http.post("/v1/probes/nothing"), 404)
    assert detail["type"] == "not_found"
    assert "graph-break" in detail["message"]


def test_studies_need_the_key_where_one_is_set(tmp_path: Path) -> None:
    with place(tmp_path, {"api_key": "secret"}) as here:
        assert error(here.study(), 401)["type"] == "unauthorised"
        # Nor does a sweep without the key block studies.
        here.front.generate(headers={"X-Launchbound-Run": "1"})
        keyed = {"Authorization": "Bearer secret"}
        assert here.front.http.post(STUDY, json={"mode": "eager"}, headers=keyed).status_code == 200
