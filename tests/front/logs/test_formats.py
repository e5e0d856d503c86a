"""A record is one line, in either form, whatever is in it."""

from __future__ import annotations

import json
import logging
import re
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.front.launch import read_text
from service.front.logs import (
    FORMATTERS,
    MOST_CHARACTERS,
    Event,
    JsonFormatter,
    TextFormatter,
    one_line,
)

ANY_TEXT = st.text(st.characters(exclude_categories=()))
"""Control characters, line and paragraph separators, halves of characters and all."""

NASTY = "a\nb\r\x1b[31m\x85\u2028\u202e\ud800\x00"
FORGED = "fine\n2026-01-01 00:00:00.000 error   service    the disk is on fire"


def note(text: str, inner: dict[str, list[str]] | None = None) -> Event:
    return Event({"text": text, "inner": inner}, lambda fields: one_line(fields["text"]))


def record(message: object, name: str = "launchbound.api", *arguments: object) -> logging.LogRecord:
    return logging.LogRecord(name, logging.INFO, __file__, 1, message, arguments, None)


def raised(error: Exception) -> logging.LogRecord:
    try:
        raise error
    except Exception:  # noqa: BLE001 - any will do
        return logging.LogRecord("launchbound", logging.ERROR, __file__, 1, "failed", (), sys.exc_info())


def is_plain(line: str) -> bool:
    """Whether it is one line for everybody, and tells a terminal nothing."""
    return len(line.splitlines()) <= 1 and re.search(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e]", line) is None


@given(ANY_TEXT)
def test_text_is_one_line_with_its_head_whatever_the_message_is(text: str) -> None:
    line = TextFormatter().format(record("%s", "launchbound.api", text))
    assert is_plain(line)
    line.encode()
    found = read_text(line)
    assert found is not None
    assert (found.level, found.component) == ("info", "api")


@given(ANY_TEXT)
def test_json_is_one_object_on_one_line_whatever_the_message_is(text: str) -> None:
    line = JsonFormatter().format(record("%s", "launchbound.api", text))
    assert is_plain(line)
    told = json.loads(line.encode())
    assert set(told) == {"time", "level", "component", "message"}
    assert (told["level"], told["component"]) == ("info", "api")
    assert told["time"].endswith("+00:00")


@pytest.mark.parametrize("form", FORMATTERS)
@given(ANY_TEXT)
def test_an_event_is_one_line_whatever_its_fields_hold(form: str, text: str) -> None:
    line = FORMATTERS[form]().format(record(note(text, {"deep": [text]})))
    assert is_plain(line)
    line.encode()


@given(st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp", "Cf")), max_size=MOST_CHARACTERS))
def test_harmless_text_is_left_as_it_is(text: str) -> None:
    assert one_line(text) == text


def test_no_message_can_pretend_to_be_another_line() -> None:
    lines = TextFormatter().format(record("%s", "launchbound.api", FORGED)).split("\n")
    assert len(lines) == 1
    assert r"fine\n2026-01-01" in lines[0]


def test_no_exception_can_pretend_to_be_another_line() -> None:
    head, *trace = TextFormatter().format(raised(ValueError(f"{NASTY}\n{FORGED}"))).split("\n")
    assert read_text(head) is not None
    assert trace
    assert all(line.startswith("    ") and is_plain(line) and read_text(line) is None for line in trace)


def test_an_exception_in_json_is_a_field_of_its_line() -> None:
    line = JsonFormatter().format(raised(ValueError(NASTY)))
    assert is_plain(line)
    told = json.loads(line)
    assert told["message"] == "failed"
    assert "ValueError" in told["traceback"]
    assert "\x1b" not in told["traceback"]


def test_a_huge_text_is_cut_and_says_so() -> None:
    shown = one_line("x" * 10_000_000)
    assert len(shown) < MOST_CHARACTERS + 100
    assert shown.endswith("(10000000 characters)")


def test_the_fields_of_an_event_stand_beside_those_of_every_line() -> None:
    told: dict[str, Any] = json.loads(JsonFormatter().format(record(note("hello"), "launchbound.request")))
    assert told.pop("time")
    assert told == {"level": "info", "component": "request", "text": "hello", "inner": None}


@pytest.mark.parametrize(
    ("logger", "component"),
    [
        ("launchbound", "service"),
        ("launchbound.api", "api"),
        ("uvicorn.error", "server"),
        ("asyncio", "asyncio"),
    ],
)
def test_a_component_is_named_after_its_logger(logger: str, component: str) -> None:
    assert json.loads(JsonFormatter().format(record("hello", logger)))["component"] == component
    assert (read_text(TextFormatter().format(record("hello", logger))) or ("", ""))[1] == component
