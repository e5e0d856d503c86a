"""What goes to and comes from the worker process, and the flags of the service."""

from __future__ import annotations

import io

import msgspec

from service.front.settings import Settings
from service.protocol.messages import EngineSettings
from service.selftest import worker
from service.selftest.checks import ENGINE_CHECKS
from service.selftest.events import CheckFinished, CheckProgress, MachineFacts, WorkerEvent
from service.selftest.results import interval_result
from service.selftest.running_service import service_flags
from service.statistics.intervals import Interval


def test_every_engine_check_has_its_function_and_its_title() -> None:
    assert worker.CHECKS.keys() == ENGINE_CHECKS.keys()


def test_every_event_arrives_as_it_was_written() -> None:
    row = interval_result("a", "≤ 1", Interval(0.5, 0.4, 0.6, 9), most=1)
    events: list[WorkerEvent] = [
        MachineFacts({"cpu": "A CPU", "threads": 1}),
        CheckFinished("injected", [row]),
    ]
    stream = io.BytesIO()
    writer = worker.EventWriter(stream)
    writer.log_of("injected")("round 1 of 2")
    for event in events:
        writer.write(event)
    arrived = [msgspec.json.decode(line, type=WorkerEvent) for line in stream.getvalue().splitlines()]
    assert arrived == [CheckProgress("injected", "round 1 of 2"), *events]


def test_settings_cross_to_the_worker_and_to_the_service_as_they_are() -> None:
    settings = Settings(modes=["eager", "compiled"], device="cpu")
    assert "--modes=eager,compiled" in service_flags(settings)
    assert "--batch-sizes=1,4,16" in service_flags(settings)
    sent = msgspec.json.encode(settings.engine_settings(""))
    assert msgspec.json.decode(sent, type=EngineSettings).modes == ["eager", "compiled"]
