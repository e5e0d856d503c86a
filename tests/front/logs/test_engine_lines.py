"""What serves here is said when an engine connects; then each mode that is ready or failed, and the end."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from service.front.logs import EngineLog
from service.front.settings import Settings
from service.machine import processor_name
from service.records import ModeStatus
from tests.support.serving import Front, Lines, logged, running, until

BANNER_LINES = 10


def status(state: str, **changes: object) -> ModeStatus:
    fields = {"mode": "compiled", "removes": "Python", "effective": "compiled", **changes}
    return ModeStatus(state=state, **fields)  # type: ignore[arg-type]


def engine_log() -> EngineLog:
    return EngineLog(Settings(), {"version": "1", "commit": "abc"}, None)


@pytest.mark.slow
def test_the_banner_says_what_serves_where_and_who_may_call(tmp_path: Path) -> None:
    given = {"api_key": "secret", "cache_folder": tmp_path, "commit": "abc", "modes": ["eager", "compiled"]}
    with logged() as lines, running(given, states={"compiled": "failed"}) as front:
        (banner,) = until(lambda: lines.objects("start"), "the banner")
        engine = until(lambda: front.state.client.engine, "the engine")
    expected = {
        "model": "tiny",
        "dtype": "float32",
        "context": engine.context,
        "batch_sizes": [1, 4],
        "linears": None,
        "device": "cpu",
        "device_name": "fake",
        "cpu": processor_name(),
        "torch": "none",
        "cuda": None,
        "threads": 1,
        "engine_pid": engine.pid,
        "engine_cpus": [0],
        "front_cpus": sorted(os.sched_getaffinity(0)),
        "modes": {"eager": "ready", "compiled": "failed"},
        "key": True,
        "cache_folder": str(tmp_path),
        "address": None,
        "commit": "abc",
    }
    assert {name: banner[name] for name in expected} == expected
    assert "secret" not in "".join(lines.lines)


@pytest.mark.slow
def test_for_people_the_banner_is_a_line_for_each_of_its_parts() -> None:
    with logged("text") as lines, running() as front:
        front.await_ready()
    banner = [line for line in lines.lines if " start " in line]
    assert len(banner) == BANNER_LINES
    for part in ("address      none · no API key is set", "cpu (fake)", "eager ready", "engine 0 · front "):
        assert any(part in line for line in banner), part


@pytest.mark.slow
def test_deaths_restarts_and_the_next_banner_are_lines(own_front: Front) -> None:
    with logged() as lines:
        own_front.command("!die")
        own_front.await_ready()
        until(lambda: lines.objects("start"), "the banner of the next engine")
    (death,) = lines.objects("supervisor")
    assert death["level"] == "error"
    assert "the engine ended with exit code 7; a new one starts in 0.0 s" in death["message"]
    assert "eager" in {line["mode"] for line in lines.objects("mode")}


@pytest.mark.slow
def test_what_the_engine_announces_is_a_line_once_in_a_row() -> None:
    with logged() as lines, running(doing="warming up compiled") as front:
        front.await_ready()
        until(
            lambda: front.state.client.doing and front.state.client.doing.what != "starting", "a word of it"
        )
    announced = [line["message"] for line in lines.objects("engine") if "warming" in line["message"]]
    assert announced == ["the engine is warming up compiled (given up after 10 s)"]


@pytest.mark.slow
def test_what_the_engine_writes_is_lines_of_the_log_before_its_end_is() -> None:
    with logged() as lines, running(exit=3) as front:
        until(lambda: front.state.supervisor.starts > 1, "its end")
    told = [(line["component"], line.get("message", "")) for line in map(json.loads, list(lines.lines))]
    said = told.index(("engine", "as commanded"))
    ended = next(place for place, (_, message) in enumerate(told) if "exit code 3" in message)
    assert said < ended


def mode_lines(*statuses: ModeStatus) -> Lines:
    listener = engine_log()
    with logged() as lines:
        for one in statuses:
            listener.mode(one)
    return lines


def test_a_mode_is_a_line_when_it_is_ready_with_what_compiling_took() -> None:
    done = status("ready", warmup_seconds=20.0, compile_seconds=[9.0, 10.0], cache="cold")
    (line,) = mode_lines(status("cold"), status("warming"), done, done).objects("mode")
    assert (line["mode"], line["state"], line["cache"]) == ("compiled", "ready", "cold")
    assert (line["compilations"], line["compile_seconds"], line["level"]) == (2, 19.0, "info")


def test_a_mode_that_fails_or_compiles_again_is_a_warning() -> None:
    failed = mode_lines(status("failed", detail="RuntimeError: a\nb")).objects("mode")
    assert [(line["level"], line["detail"]) for line in failed] == [("warning", "RuntimeError: a\nb")]
    again = mode_lines(status("ready"), status("ready", recompiles=1)).objects("mode")
    assert [line["level"] for line in again] == ["info", "warning"]


def test_for_people_a_mode_is_one_line_whatever_its_reason_holds() -> None:
    with logged("text") as lines:
        engine_log().mode(status("failed", detail="RuntimeError: a\nb", effective="eager", reason="c\nd"))
    (line,) = lines.lines
    assert r"compiled        failed; as eager (c\nd); RuntimeError: a\nb" in line


def test_settings_choose_the_form_and_the_requests() -> None:
    chosen = Settings(log_format="json", log_requests="failed")
    assert (chosen.log_format, chosen.log_requests) == ("json", "failed")
    assert (Settings().log_format, Settings().log_requests) == ("text", "all")
