"""Plans: cells, their order and arrivals, objectives, prompts, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.plan.cells import Cell, Plan, PlanError, Slo, SloTable, due_times, order, parse_slo, slo_table
from loadtests.plan.presets import (
    PRESETS,
    describe,
    estimate_most_seconds,
    estimate_seconds,
    make_plan,
    request_seconds,
)
from loadtests.plan.prompts import PROMPT_SETS, PromptError, draw, read_prompts, select
from loadtests.run.requests import body
from loadtests.run.schedule import group_name


def test_rounds_differ_in_order_and_the_seed_fixes_them() -> None:
    plan = make_plan("quick", seed=7)
    orders = [[cell.name for cell in order(plan, number)] for number in range(1, 9)]
    assert len({tuple(names) for names in orders}) == 8
    assert orders == [[cell.name for cell in order(make_plan("quick", seed=7), n)] for n in range(1, 9)]
    assert orders[0] != [cell.name for cell in order(make_plan("quick", seed=8), 1)]
    rounds = [order(plan, number) for number in range(1, 9)]
    for cells in rounds:
        batches = [cell.batch_size for cell in cells]
        assert [batches[n : n + 6] for n in (0, 6, 12)] == [[b] * 6 for b in dict.fromkeys(batches)]
    assert len({tuple(dict.fromkeys(c.batch_size for c in cells)) for cells in rounds}) > 1
    assert len({tuple(c.name for c in cells if c.batch_size == 4) for cells in rounds}) == 8


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_has_eight_rounds_and_a_control_at_every_closed_batch(preset: str) -> None:
    plan = make_plan(preset)
    assert plan.rounds >= 8
    groups = {(c.batch_size, c.prompt_set, c.new_tokens, c.concurrency) for c in plan.cells if c.load is None}
    controls = [(c.batch_size, c.prompt_set, c.new_tokens, c.concurrency) for c in plan.cells if c.control]
    assert sorted(controls) == sorted(groups)


def test_more_rounds_are_planned_as_looks_with_a_confidence_that_makes_up_for_them() -> None:
    plan = make_plan("quick")
    assert plan.interim_checks == (8, 12, 16)
    assert plan.confidence == pytest.approx(1 - 0.05 / 3)
    assert "after rounds 8, 12, 16" in describe(plan)
    assert f"at most about {estimate_most_seconds(plan):.0f} s" in describe(plan)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"preset": "huge"}, "try one of quick"),
        ({"preset": "quick", "modes": ["compiled"]}, "every speed-up is against it"),
        ({"preset": "quick", "batch_sizes": [0]}, "at least 1"),
    ],
)
def test_a_plan_without_comparable_results_is_refused_with_the_remedy(arguments: dict, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make_plan(**arguments)


def test_the_saturation_preset_is_a_ladder_of_rates_within_forty_minutes() -> None:
    plan = make_plan("saturation")
    assert {cell.concurrency for cell in plan.cells if not cell.open_loop} == {1, 2, 4, 8}
    assert {cell.load for cell in plan.cells if cell.open_loop} == {0.3, 0.45, 0.6, 0.75, 0.9, 1.1}
    assert plan.slo == Slo(e2e_of_eager=3.0)
    assert [group[3] for group in plan.main_groups] == [1]
    assert 300 < estimate_most_seconds(plan) < 40 * 60
    text = describe(plan)
    assert "the answer within 3 times eager's latency without load, for 95 % of the requests" in text


def test_an_estimate_knows_how_long_a_visit_at_each_rate_takes() -> None:
    closed = Cell(mode="eager", batch_size=1, requests=1)

    def seconds(**arrivals: float) -> float:
        cell = Cell(mode="eager", batch_size=1, requests=1000, **arrivals)  # type: ignore[arg-type]
        plan, alone = (Plan(preset="own", seed=0, rounds=1, cells=c) for c in ((closed, cell), (closed,)))
        return estimate_seconds(plan) - estimate_seconds(alone)

    service = 1000 * request_seconds(closed)
    assert seconds(rate=1.0) == pytest.approx(1000, rel=0.01)
    assert seconds(rate=1e6) == pytest.approx(service, rel=0.01)
    assert seconds(load=0.5) == pytest.approx(2 * service, rel=0.01)
    assert seconds(load=2.0) == pytest.approx(service, rel=0.01)


def test_all_modes_of_a_round_get_the_same_prompts() -> None:
    plan = make_plan("quick")
    texts = read_prompts()
    eager, compiled = (Cell(mode=mode, batch_size=4) for mode in ("eager", "compiled"))
    assert body(plan, texts, eager, 2, 0) == body(plan, texts, compiled, 2, 0)
    assert body(plan, texts, eager, 2, 0) != body(plan, texts, eager, 3, 0)
    assert body(plan, texts, eager, 2, 0) != body(plan, texts, eager, 2, 1)


@pytest.mark.parametrize("name", PROMPT_SETS)
def test_a_prompt_set_has_the_length_it_is_called_by(name: str) -> None:
    lengths = [len(text) for text in select(read_prompts(), name)]
    assert max(lengths) <= 160 if name == "short" else max(lengths) > 160
    assert min(lengths) >= 900 if name == "long" else min(lengths) < 900


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no prompt"),
        ('{"text": 3}\n', "line 1"),
        ('{"text": "a"}\nnonsense\n', "line 2"),
        ("[1]\n", "line 1"),
    ],
)
def test_a_broken_prompt_file_is_refused_with_its_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(content)
    with pytest.raises(PromptError, match=message):
        read_prompts(path)


@given(st.lists(st.text(min_size=1), min_size=1, unique=True), st.integers(0, 40), st.text())
def test_drawing_repeats_nothing_while_there_is_enough(texts: list[str], count: int, seed: str) -> None:
    drawn = draw(texts, count, seed)
    assert len(drawn) == count
    assert drawn == draw(texts, count, seed)
    assert len(set(drawn)) == min(count, len(texts))


def test_cells_keep_the_names_and_groups_that_rows_and_orders_have() -> None:
    closed = Cell(mode="eager", batch_size=4, concurrency=2)
    assert (closed.name, closed.group) == ("eager b=4 short n=32 c=2", (4, "short", 32, 2, None))
    opened = Cell(mode="eager", batch_size=1, load=0.9)
    assert (opened.name, opened.group) == ("eager b=1 short n=32 load=0.9", (1, "short", 32, 1, 0.9))
    assert (closed.open_loop, opened.open_loop) == (False, True)
    cells = {
        "rate=40/s": {"rate": 40.0},
        "rate=40/s constant": {"rate": 40.0, "arrivals": "constant"},
        "load=1.1": {"load": 1.1},
        "load=1.1 constant": {"load": 1.1, "arrivals": "constant"},
    }
    made = {name: Cell(mode="compiled", batch_size=1, **given) for name, given in cells.items()}  # type: ignore[arg-type]
    assert all(cell.name == f"compiled b=1 short n=32 {name}" for name, cell in made.items())
    assert [group_name(cell.group) for cell in made.values()] == [f"b=1 short n=32 {name}" for name in cells]
    assert group_name(closed.group) == "b=4 short n=32 c=2"


RATES = st.floats(0.01, 1000)


@given(RATES, st.floats(1.01, 10), st.integers(1, 50), st.text())
def test_arrivals_are_fixed_by_the_seed_and_only_scaled_by_the_rate(
    rate: float, times: float, count: int, seed: str
) -> None:
    slow, fast = due_times("poisson", rate, count, seed), due_times("poisson", times * rate, count, seed)
    assert (len(slow), slow[0]) == (count, 0)
    assert slow == sorted(slow)
    assert slow == pytest.approx([times * due for due in fast])
    constant = due_times("constant", rate, count, seed)
    assert constant == pytest.approx([number / rate for number in range(count)])


def test_arrivals_keep_their_rate_on_average() -> None:
    assert due_times("poisson", 5.0, 4001, "a seed")[-1] / 4000 == pytest.approx(1 / 5, rel=0.1)


LIMITS = st.none() | st.floats(1e-6, 3600)


@given(LIMITS, LIMITS, LIMITS, st.floats(0.01, 1))
def test_an_slo_that_is_written_in_one_line_is_read_again(
    ttft: float | None, tpot: float | None, e2e: float | None, share: float
) -> None:
    table = SloTable(ttft=ttft, tpot=tpot, e2e=e2e, share=share)
    assert slo_table(table.text) == table


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "write it as in ttft="),
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
    settled = slo_table("e2e_of_eager=3,share=0.9").slo.settled(0.0671)
    assert settled == Slo(e2e_seconds=0.2, e2e_of_eager=3.0, share=0.9)
    assert settled.settled(9.0) is settled
    assert settled.text.startswith("the answer within 200 ms, which is 3 times eager's latency without load")
