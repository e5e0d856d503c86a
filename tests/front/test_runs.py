"""`/v1/runs` and `/v1/traces`: listed whatever lies in their folders."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.made_plans import make_plan
from tests.support.made_results import make_results
from tests.support.serving import Front, refused, running

PLAN = make_plan("quick", 1, ["eager", "inference_mode"], [1])


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sweeps that are whole (`old`, `far`, `new`), broken, and what is none."""
    folder = tmp_path_factory.mktemp("of") / "results"
    for name in ("old", "new", "far", "cut", "list", "other", "notes"):
        (folder / name).mkdir(parents=True)
    make_results(folder / "old", plan=PLAN, seed=1, started="2026-01-01T00:00:00Z")
    make_results(folder / "far", plan=PLAN, seed=2, started="2026-01-02T00:00:00Z")
    make_results(folder / "new", plan=PLAN, seed=3, started="2026-01-03T00:00:00Z")
    (folder / "old" / "report.md").write_text("# eager is as good as any.\n\nMore.\n")
    (folder / "old" / "report.html").write_text("<!doctype html><p>a report")
    for name, text in {"cut": '{"format_ver', "list": "[]", "other": '{"plan": {"preset": 5}}'}.items():
        (folder / name / "run.json").write_text(text)
    for name in ("fleet", "others"):
        (folder / name / "float32").mkdir(parents=True)
        (folder / name / "float32" / "run.json").write_text('{"started": "2025-12-31T00:00:00Z"}')
    (folder / "fleet" / "fleet.json").write_text("{}")
    (folder / "fleet" / "float32" / "report.html").write_text("<!doctype html><p>one of two")
    (folder / "run.json").write_text("{}")
    (folder.parent / "run.json").write_text("{}")
    (folder.parent / "report.html").write_text("secret")
    return folder


@pytest.fixture(scope="module")
def keeping(results: Path, traces: Path) -> Iterator[Front]:
    with running({"results_folder": results, "cache_folder": traces}) as started:
        started.await_ready()
        yield started


def listed(front: Front) -> dict[str, dict[str, Any]]:
    answer = front.http.get("/v1/runs")
    assert answer.status_code == 200, answer.text
    return {run["name"]: run for run in answer.json()["runs"]}


def test_sweeps_are_listed_newest_first_and_what_is_none_is_not(keeping: Front) -> None:
    assert list(listed(keeping)) == ["new", "far", "old", "fleet/float32", "other", "list", "cut"]
    assert keeping.http.get("/v1/runs").json()["folder"] == "results"


def test_a_sweep_is_described_from_its_own_files(keeping: Front) -> None:
    old, new = (listed(keeping)[name] for name in ("old", "new"))
    assert old["headline"] == "eager is as good as any."
    assert (old["has_report"], new["has_report"]) == (True, False)
    assert (new["headline"], new["problem"]) == (None, None)
    assert (old["started"], old["preset"], old["complete"]) == ("2026-01-01T00:00:00Z", "quick", True)
    assert isinstance(old["valid"], bool)


@pytest.mark.parametrize("name", ["cut", "list", "other"])
def test_one_that_cannot_be_read_says_why(keeping: Front, name: str) -> None:
    run = listed(keeping)[name]
    assert run["problem"].startswith("cannot be read: ")
    assert (run["started"], run["valid"]) == (None, None)


def test_a_folder_that_is_not_there_has_no_sweeps(keeping: Front) -> None:
    with keeping.going_by(results_folder=Path("/nothing/none")):
        assert keeping.http.get("/v1/runs").json() == {"folder": "none", "runs": []}
        refused(keeping.http.get("/v1/runs/old/report"), 404)


def test_a_report_is_served_in_a_sandbox_that_reaches_nothing(keeping: Front) -> None:
    answer = keeping.http.get("/v1/runs/old/report")
    assert answer.text == "<!doctype html><p>a report"
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"].split("; ")
    assert "sandbox allow-scripts" in policy
    assert "default-src 'none'" in policy
    assert not [rule for rule in policy if rule.startswith("connect-src")]
    assert "one of two" in keeping.http.get("/v1/runs/fleet%2Ffloat32/report").text
    error = refused(keeping.http.get("/v1/runs/new/report"), 404)
    assert error["type"] == "no_report"
    assert "launchbound report" in error["message"]


# ---------------------------------------------------------------- traces


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of traces: one whole, the others as a crash or a full disk leaves them."""
    cache = tmp_path_factory.mktemp("cache")
    folder = cache / "traces"
    folder.mkdir()
    whole = gzip.compress(b'{"traceEvents": []}')
    (folder / "whole.trace.json.gz").write_bytes(whole)
    (folder / "whole.json").write_text(json.dumps({"id": "whole", "created": 1.0}))
    for name, created in (("new-2", 3.0), ("old-1", 2.0)):
        (folder / f"{name}.trace.json.gz").write_bytes(gzip.compress(json.dumps([name]).encode()))
        note = {"id": name, "request_id": "twice", "created": created}
        (folder / f"{name}.json").write_text(json.dumps(note))
    (folder / "empty.trace.json.gz").touch()
    (folder / "cut.trace.json.gz").write_bytes(whole[:-9])
    (folder / "other.trace.json.gz").write_bytes(b"no gzip")
    (folder / "folder.trace.json.gz").mkdir()
    notes = {"empty": "", "cut": '{"id": "cu', "list": "[]", "dateless": "{}", "odd": '{"created": "today"}'}
    for name, text in notes.items():
        (folder / f"{name}.json").write_text(text)
    (folder / "bytes.json").write_bytes(b"\xff\xfe")
    return cache


def test_what_cannot_be_read_is_left_out_of_the_list(keeping: Front) -> None:
    answer = keeping.http.get("/v1/traces")
    assert answer.status_code == 200
    assert [note["id"] for note in answer.json()["traces"]] == ["new-2", "old-1", "whole"]


def test_traces_of_one_request_id_are_read_by_their_own_ids_and_the_newest_by_the_requests(
    keeping: Front,
) -> None:
    assert keeping.http.get("/v1/traces/whole").json() == {"traceEvents": []}
    read = {name: keeping.http.get(f"/v1/traces/{name}").json() for name in ("new-2", "old-1", "twice")}
    assert read == {"new-2": ["new-2"], "old-1": ["old-1"], "twice": ["new-2"]}


@pytest.mark.parametrize("name", ["empty", "cut", "other", "folder"])
def test_a_damaged_trace_is_a_404_that_says_so(keeping: Front, name: str) -> None:
    error = refused(keeping.http.get(f"/v1/traces/{name}"), 404)
    assert error["type"] == "trace_damaged"


OF_NO_SWEEP = ["..", "%2e%2e", ".", "notes", "old%2f..", "x" * 999, "others%2Ffloat32", "fleet%2F..%2F.."]
OF_NO_TRACE = ["é" * 128, "x" * 129, "a b", "..%2f..%2fsettings"]


@pytest.mark.parametrize(
    "path",
    [
        *(f"/v1/runs/{name}/report" for name in ("none", "%00", *OF_NO_SWEEP)),
        *(f"/v1/traces/{name}" for name in ("none", "%00", *OF_NO_TRACE)),
    ],
)
def test_a_name_that_no_sweep_or_trace_has_is_a_404(keeping: Front, path: str) -> None:
    refused(keeping.http.get(path), 404)
