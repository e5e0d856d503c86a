"""SLOs: what they ask for, as text and of a row."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.plan.cells import Cell, Plan, PlanError, Slo, SloTable, check, parse_slo, slo_table
from loadtests.run.requests import LoadRequest, LoadResponse, row
from loadtests.run.rows import RequestRow
from tests.support.fake_service import timings

LIMITS = st.none() | st.floats(1e-6, 3600)


def answered(
    late: float = 0.0, latency: float = 0.03, new_tokens: int = 9, status: int = 200, **parts: float
) -> RequestRow:
    """A row of a request that was sent so `late`; the stand-in's timings with `parts` over them."""
    cell = Cell(mode="eager", batch_size=1, new_tokens=new_tokens, rate=9.0)
    request = LoadRequest(cell, 1, 0, "measure", "an id", "{}", intended=5.0)
    body = {"timings": timings("eager", 1, new_tokens) | parts, "outputs": []}
    text = msgspec.json.encode(body).decode() if status == 200 else "{}"
    response = LoadResponse(5.0 + late, latency, status, text, None if status == 200 else "refused")
    return msgspec.convert(row("a run", 1, 0, request, response, 1e9), RequestRow)


@given(LIMITS, LIMITS, LIMITS, st.floats(0.01, 1))
def test_what_is_written_in_one_line_is_read_again(
    ttft: float | None, tpot: float | None, e2e: float | None, share: float
) -> None:
    table = SloTable(ttft=ttft, tpot=tpot, e2e=e2e, share=share)
    assert slo_table(table.text) == table


def test_an_slo_is_read_in_seconds_with_a_usual_share() -> None:
    assert parse_slo("ttft=0.05, tpot=0.01,e2e=0.1,share=0.99") == Slo(
        ttft_seconds=0.05, tpot_seconds=0.01, e2e_seconds=0.1, share=0.99
    )
    assert parse_slo("e2e=1").share == 0.95


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "write it as in ttft="),
        ("e2e", "write it as in ttft="),
        ("e2e=0", "> 0.0"),
        ("e2e=nan", "e2e"),
        ("e2e=inf", "<= 3600"),
        ("e2e=0.1,e2e=0.2", "e2e twice"),
        ("latency=0.1", "unknown field `latency`"),
        ("e2e=0.1,share=1.5", "<= 1.0"),
        ("share=0.5", "give ttft, tpot or e2e"),
        ("e2e_of_eager=1", "> 1.0"),
        ("e2e=0.1,e2e_of_eager=3", "leave one out"),
        ("e2e_of_eager=3", "give e2e in seconds"),
    ],
)
def test_what_is_no_slo_is_refused_with_the_remedy(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        parse_slo(text)


def test_a_multiple_of_eagers_latency_becomes_seconds() -> None:
    relative = slo_table("e2e_of_eager=3,share=0.9").slo
    settled = relative.settled(0.0671)
    assert settled == Slo(e2e_seconds=0.2, e2e_of_eager=3.0, share=0.9)
    assert settled.settled(9.0) is settled
    assert settled.text.startswith("the answer within 200 ms, which is 3 times eager's latency without load")


def test_a_multiple_needs_one_latency_of_eager() -> None:
    own = Cell(mode="eager", batch_size=1, load=0.5)
    plan = Plan(preset="own", seed=0, rounds=1, cells=(own,), slo=Slo(e2e_of_eager=3.0))
    assert check(plan) is plan
    other = msgspec.structs.replace(own, new_tokens=8)
    with pytest.raises(PlanError, match="open-loop cells of 2 kinds: give the SLO's e2e in seconds"):
        check(msgspec.structs.replace(plan, cells=(own, other)))
    closed = msgspec.structs.replace(own, load=None)
    with pytest.raises(PlanError, match="no open-loop cell"):
        check(msgspec.structs.replace(plan, cells=(closed,)))


@pytest.mark.parametrize("status", [429, 500, 0])
def test_only_a_refusal_is_rejected(status: int) -> None:
    missed = answered(status=status)
    assert missed.rejected is (status == 429)


def test_a_refusal_is_an_error_in_a_closed_loop_and_in_warm_up() -> None:
    refused = answered(status=429)
    assert not msgspec.structs.replace(refused, rate=None).rejected
    assert not msgspec.structs.replace(refused, stage="warmup").rejected
    assert msgspec.structs.replace(refused, rate=None, load=0.5).rejected
