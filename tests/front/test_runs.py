"""`/v1/runs`: sweeps are listed whatever lies in their folder, and two are compared by the verb."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

import launchbound
from loadtests.plan.presets import make_plan
from service.front.errors import LaunchboundError
from service.front.routes import runs
from service.front.routes.runs import ComparisonBusy, compare_runs
from tests.front.test_api_bad_input import refused
from tests.support.made_results import ALIKE, CLEAR, edit_run, make_results
from tests.support.serving import Front, running, until

PLAN = make_plan("quick", 1, ["eager", "inference_mode"], [1])
SWEEP = {"X-Launchbound-Run": "20260101-1"}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sweeps that are whole (`old`, `new`), of another machine (`far`), broken, and what is none."""
    folder = tmp_path_factory.mktemp("of") / "results"
    for name in ("old", "new", "far", "cut", "list", "notes"):
        (folder / name).mkdir(parents=True)
    make_results(folder / "old", plan=PLAN, seed=1, started="2026-01-01T00:00:00Z")
    make_results(
        folder / "new", {**CLEAR, "inference_mode": 1.4}, plan=PLAN, seed=2, started="2026-01-03T00:00:00Z"
    )
    make_results(folder / "far", ALIKE, plan=PLAN, seed=3, started="2026-01-02T00:00:00Z")
    edit_run(folder / "far", lambda run: run.environment.update(cpu="another CPU"))
    (folder / "old" / "report.md").write_text("# eager is as good as any.\n\nMore.\n")
    (folder / "old" / "report.html").write_text("<!doctype html><p>a report")
    for name, text in {"cut": '{"format_ver', "list": "[]"}.items():
        (folder / name / "run.json").write_text(text)
    for name in ("series", "others"):
        (folder / name / "float32").mkdir(parents=True)
        (folder / name / "float32" / "run.json").write_text('{"started": "2025-12-31T00:00:00Z"}')
    (folder / "series" / "series.json").write_text("{}")
    (folder / "series" / "float32" / "report.html").write_text("<!doctype html><p>one of two")
    (folder / "run.json").write_text("{}")
    (folder.parent / "run.json").write_text("{}")
    (folder.parent / "report.html").write_text("secret")
    return folder


@pytest.fixture(scope="module")
def keeping(results: Path) -> Iterator[Front]:
    with running({"results_folder": results}) as started:
        started.await_ready()
        yield started


def listed(front: Front) -> dict[str, dict[str, Any]]:
    answer = front.http.get("/v1/runs")
    assert answer.status_code == 200, answer.text
    return {run["name"]: run for run in answer.json()["runs"]}


def test_sweeps_are_listed_newest_first_and_what_is_none_is_not(keeping: Front) -> None:
    assert list(listed(keeping)) == ["new", "far", "old", "series/float32", "list", "cut"]
    assert keeping.http.get("/v1/runs").json()["folder"] == "results"


def test_a_sweep_is_described_from_its_own_files(keeping: Front) -> None:
    old, new = (listed(keeping)[name] for name in ("old", "new"))
    assert old["headline"] == "eager is as good as any."
    assert (old["has_report"], new["has_report"]) == (True, False)
    assert (new["headline"], new["problem"]) == (None, None)
    assert (old["started"], old["preset"], old["complete"]) == ("2026-01-01T00:00:00Z", "quick", True)
    assert isinstance(old["valid"], bool)


def test_one_of_a_series_has_its_own_report(keeping: Front) -> None:
    assert "one of two" in keeping.http.get("/v1/runs/series%2Ffloat32/report").text
    refused(keeping.http.get("/v1/runs/others%2Ffloat32/report"), 404)
    refused(keeping.http.get("/v1/runs/series%2F..%2F..%2Freport"), 404)


@pytest.mark.parametrize("name", ["cut", "list"])
def test_one_that_cannot_be_read_says_why(keeping: Front, name: str) -> None:
    run = listed(keeping)[name]
    assert run["problem"].startswith("cannot be read: ")
    assert (run["started"], run["valid"]) == (None, None)


def test_a_folder_that_is_not_there_has_no_sweeps(tmp_path: Path) -> None:
    with running({"results_folder": tmp_path / "none"}) as empty:
        assert empty.http.get("/v1/runs").json() == {"folder": "none", "runs": []}
        refused(empty.http.get("/v1/runs/old/report"), 404)


def test_a_report_is_served_in_a_sandbox_that_reaches_nothing(keeping: Front) -> None:
    answer = keeping.http.get("/v1/runs/old/report")
    assert answer.text == "<!doctype html><p>a report"
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"].split("; ")
    assert "sandbox allow-scripts" in policy
    assert "default-src 'none'" in policy
    assert not [rule for rule in policy if rule.startswith("connect-src")]


@pytest.mark.parametrize("name", ["..", "%2e%2e", ".", "none", "notes", "%00", "old%2f..", "x" * 999])
def test_a_name_that_no_sweep_has_is_a_404(keeping: Front, name: str) -> None:
    refused(keeping.http.get(f"/v1/runs/{name}/report"), 404)


def test_a_sweep_without_a_report_is_a_404_with_the_remedy(keeping: Front) -> None:
    error = refused(keeping.http.get("/v1/runs/new/report"), 404)
    assert error["type"] == "no_report"
    assert "launchbound report" in error["message"]


@pytest.mark.slow
def test_two_are_compared_as_the_verb_compares_them(keeping: Front, results: Path) -> None:
    answer = keeping.http.post("/v1/runs/compare", json={"before": "old", "after": "new"})
    assert answer.status_code == 200, answer.text
    done = CliRunner().invoke(
        launchbound.app, ["compare", "--json", str(results / "old"), str(results / "new")]
    )
    document = json.loads(done.stdout)
    document["before"]["path"], document["after"]["path"] = "old", "new"
    assert answer.json() == document
    words = {cell["mode"]: cell["word"] for cell in document["cells"]}
    assert words["inference_mode"] == "slower"


@pytest.mark.slow
def test_unlike_sweeps_are_refused_with_the_verbs_reason_unless_forced(keeping: Front) -> None:
    body = {"before": "old", "after": "far"}
    error = refused(keeping.http.post("/v1/runs/compare", json=body), 422)
    assert error["type"] == "not_comparable"
    assert "another CPU" in error["message"]
    forced = keeping.http.post("/v1/runs/compare", json={**body, "force": True})
    assert forced.status_code == 200, forced.text
    assert [one["fact"] for one in forced.json()["unlike"]] == ["the service's processor"]


@pytest.mark.parametrize(
    "body", [{"before": "old"}, {"before": "old", "after": "../old"}, {"before": 1, "after": "old"}]
)
def test_what_names_no_two_sweeps_is_refused(keeping: Front, body: dict[str, object]) -> None:
    assert keeping.http.post("/v1/runs/compare", json=body).status_code in (404, 422)


def test_no_comparison_runs_beside_a_sweep(results: Path) -> None:
    with running({"results_folder": results}) as swept:
        swept.await_ready()
        swept.generate(headers=SWEEP)
        answer = swept.http.post("/v1/runs/compare", json={"before": "old", "after": "new"})
        assert refused(answer, 409)["type"] == "run_in_progress"


STUCK = (sys.executable, "-c", "import signal; signal.pause()")


def children() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # it has ended since it was listed
            if "signal.pause" in " ".join(child.cmdline()):
                found.append(child)
    return found


def test_a_comparison_that_is_cancelled_ends_its_process_and_only_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "COMMAND", STUCK)

    async def cancelled() -> None:
        lock = asyncio.Lock()
        first = asyncio.create_task(compare_runs(lock, tmp_path, tmp_path, force=False))
        await asyncio.to_thread(until, children, "the process")
        with pytest.raises(ComparisonBusy):
            await compare_runs(lock, tmp_path, tmp_path, force=False)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert first.cancelled()

    asyncio.run(cancelled())
    assert children() == []


def test_a_client_that_hangs_up_ends_its_comparison(keeping: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "COMMAND", STUCK)
    body = b'{"before": "old", "after": "new"}'
    head = f"POST /v1/runs/compare HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    with socket.create_connection((keeping.http.base_url.host, keeping.http.base_url.port or 80)) as client:
        client.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        until(children, "the process")
    until(lambda: not children(), "its end")
    answer = keeping.http.post("/v1/runs/compare", json={"before": "old", "after": "none"})
    refused(answer, 404)


def test_a_comparison_that_fails_says_with_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "COMMAND", (sys.executable, "-c", "raise SystemExit('no memory')"))
    with pytest.raises(LaunchboundError, match="ended with 1: no memory"):
        asyncio.run(compare_runs(asyncio.Lock(), tmp_path, tmp_path, force=False))
