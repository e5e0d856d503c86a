"""Traces are listed and read whatever lies in their folder, and only by names that a trace can have."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.front.test_api_bad_input import refused
from tests.support.serving import Front, running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of traces: one whole, the others as a crash or a full disk leaves them."""
    cache = tmp_path_factory.mktemp("cache")
    traces = cache / "traces"
    traces.mkdir()
    whole = gzip.compress(b'{"traceEvents": []}')
    (traces / "whole.trace.json.gz").write_bytes(whole)
    (traces / "whole.json").write_text(json.dumps({"id": "whole", "created": 1.0}))
    for name, created in (("new-2", 3.0), ("old-1", 2.0)):
        (traces / f"{name}.trace.json.gz").write_bytes(gzip.compress(json.dumps([name]).encode()))
        note = {"id": name, "request_id": "twice", "created": created}
        (traces / f"{name}.json").write_text(json.dumps(note))
    (traces / "empty.trace.json.gz").touch()
    (traces / "cut.trace.json.gz").write_bytes(whole[:-9])
    (traces / "other.trace.json.gz").write_bytes(b"no gzip")
    (traces / "folder.trace.json.gz").mkdir()
    notes = {"empty": "", "cut": '{"id": "cu', "list": "[]", "dateless": "{}", "odd": '{"created": "today"}'}
    for name, text in notes.items():
        (traces / f"{name}.json").write_text(text)
    (traces / "bytes.json").write_bytes(b"\xff\xfe")
    return cache


@pytest.fixture(scope="module")
def keeping(folder: Path) -> Iterator[Front]:
    with running({"cache_folder": folder}) as started:
        yield started


def test_what_cannot_be_read_is_left_out_of_the_list(keeping: Front) -> None:
    answer = keeping.http.get("/v1/traces")
    assert answer.status_code == 200
    assert [note["id"] for note in answer.json()["traces"]] == ["new-2", "old-1", "whole"]


def test_a_whole_trace_is_read(keeping: Front) -> None:
    assert keeping.http.get("/v1/traces/whole").json() == {"traceEvents": []}


def test_traces_of_one_request_id_are_read_by_their_own_ids_and_the_newest_by_the_requests(
    keeping: Front,
) -> None:
    read = {name: keeping.http.get(f"/v1/traces/{name}").json() for name in ("new-2", "old-1", "twice")}
    assert read == {"new-2": ["new-2"], "old-1": ["old-1"], "twice": ["new-2"]}


@pytest.mark.parametrize("name", ["empty", "cut", "other", "folder"])
def test_a_damaged_trace_is_a_404_that_says_so(keeping: Front, name: str) -> None:
    error = refused(keeping.http.get(f"/v1/traces/{name}"), 404)
    assert error["type"] == "trace_damaged"


@pytest.mark.parametrize("name", ["é" * 128, "x" * 129, "a b", "..%2f..%2fsettings", "none", "%00"])
def test_a_name_that_no_trace_has_is_a_404(keeping: Front, name: str) -> None:
    refused(keeping.http.get(f"/v1/traces/{name}"), 404)
