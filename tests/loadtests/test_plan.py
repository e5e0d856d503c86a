"""Plans: what is visited, in which order, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.plan.cells import Cell, Plan, PlanError, Slo, check, order
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


@pytest.mark.parametrize("preset", PRESETS)
def test_every_round_visits_every_cell_once(preset: str) -> None:
    plan = make_plan(preset)
    for number in range(1, plan.rounds + 1):
        assert sorted(c.name for c in order(plan, number)) == sorted(c.name for c in plan.cells)


def test_rounds_differ_in_order_and_the_seed_fixes_them() -> None:
    plan = make_plan("quick", seed=7)
    orders = [[cell.name for cell in order(plan, number)] for number in range(1, 9)]
    assert len({tuple(names) for names in orders}) == 8
    assert orders == [[cell.name for cell in order(make_plan("quick", seed=7), n)] for n in range(1, 9)]
    assert orders[0] != [cell.name for cell in order(make_plan("quick", seed=8), 1)]


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_has_eight_rounds_and_a_control_at_every_closed_batch(preset: str) -> None:
    plan = make_plan(preset)
    assert plan.rounds >= 8
    groups = {(c.batch_size, c.prompt_set, c.new_tokens, c.concurrency) for c in plan.cells if c.load is None}
    controls = [(c.batch_size, c.prompt_set, c.new_tokens, c.concurrency) for c in plan.cells if c.control]
    assert sorted(controls) == sorted(groups)


def test_quick_is_five_modes_and_a_control_at_three_batches() -> None:
    plan = make_plan("quick")
    assert plan.batch_sizes == [1, 4, 16]
    assert len(plan.modes) == 5
    assert len(plan.cells) == 18
    assert 40 < estimate_seconds(plan) < 100
    assert estimate_seconds(plan) < estimate_most_seconds(plan) < 240


def test_a_plan_without_more_rounds_looks_once_at_95_percent() -> None:
    plan = Plan(preset="own", seed=0, rounds=8, cells=(Cell(mode="eager", batch_size=1),))
    assert plan.interim_checks == (8,)
    assert plan.confidence == 0.95
    assert estimate_most_seconds(plan) == estimate_seconds(plan)
    assert "go on" not in describe(plan)


def test_more_rounds_are_planned_as_looks_with_a_confidence_that_makes_up_for_them() -> None:
    plan = make_plan("quick")
    assert plan.interim_checks == (8, 12, 16)
    assert plan.confidence == pytest.approx(1 - 0.05 / 3)
    assert "after rounds 8, 12, 16" in describe(plan)
    assert f"at most about {estimate_most_seconds(plan):.0f} s" in describe(plan)


def test_the_main_groups_differ_in_batch_size_only() -> None:
    assert [group[0] for group in make_plan("full").main_groups] == [1, 2, 4, 8, 16, 32]
    assert {group[1:] for group in make_plan("full").main_groups} == {("short", 32, 1, None)}


def test_what_is_compared_is_measured_one_after_the_other_in_an_order_that_changes() -> None:
    plan = make_plan("quick")
    orders = [order(plan, number) for number in range(1, 9)]
    for cells in orders:
        batches = [cell.batch_size for cell in cells]
        assert [batches[n : n + 6] for n in (0, 6, 12)] == [[b] * 6 for b in dict.fromkeys(batches)]
    assert len({tuple(dict.fromkeys(c.batch_size for c in cells)) for cells in orders}) > 1
    assert len({tuple(c.name for c in cells if c.batch_size == 4) for cells in orders}) == 8


def test_leaving_groups_out_does_not_change_the_order_of_the_others() -> None:
    plan = make_plan("quick")
    kept = plan.main_groups[1:]
    for number in range(9, 25):
        whole = [cell for cell in order(plan, number) if cell.group in kept]
        assert order(plan, number, kept) == whole
        assert len(whole) == 12


def test_a_cap_below_the_least_rounds_is_refused() -> None:
    cell = Cell(mode="eager", batch_size=1)
    with pytest.raises(PlanError, match="rounds_most is 7"):
        check(Plan(preset="own", seed=0, rounds=8, rounds_most=7, cells=(cell,)))


def test_modes_and_batch_sizes_can_be_chosen() -> None:
    plan = make_plan("quick", modes=["eager", "compiled"], batch_sizes=[8, 2])
    assert plan.modes == ["eager", "compiled"]
    assert plan.batch_sizes == [2, 8]


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


@pytest.mark.parametrize(
    "cell",
    [
        Cell(mode="compiled", batch_size=1, load=3.5),
        Cell(mode="compiled", batch_size=1, rate=-1.0),
        Cell(mode="compiled", batch_size=1, rate=1.0, load=0.5),
        Cell(mode="compiled", batch_size=1, requests=0),
        Cell(mode="compiled", batch_size=1, concurrency=8, requests=14),
        Cell(mode="compiled", batch_size=1, rate=float("inf")),
        Cell(mode="eager", batch_size=1),
    ],
)
def test_a_cell_that_makes_no_sense_is_refused(cell: Cell) -> None:
    with pytest.raises(PlanError, match=r"twice|load|at least 1|above 0"):
        check(Plan(preset="own", seed=0, rounds=8, cells=(Cell(mode="eager", batch_size=1), cell)))


def test_an_slo_by_output_tokens_needs_two_of_them() -> None:
    slo = Slo(tpot_seconds=0.01)
    cells = (Cell(mode="eager", batch_size=1), Cell(mode="eager", batch_size=1, new_tokens=1, load=0.5))
    with pytest.raises(PlanError, match="leave tpot out"):
        check(Plan(preset="own", seed=0, rounds=8, cells=cells, slo=slo))


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


def test_the_description_names_every_cell_and_the_order_and_the_time() -> None:
    plan = make_plan("quick", seed=3)
    text = describe(plan)
    assert all(cell.name in text for cell in plan.cells)
    assert "round  8" in text
    assert f"about {estimate_seconds(plan):.0f} s" in text


def test_all_modes_of_a_round_get_the_same_prompts() -> None:
    plan = make_plan("quick")
    texts = read_prompts()
    eager, compiled = (Cell(mode=mode, batch_size=4) for mode in ("eager", "compiled"))
    assert body(plan, texts, eager, 2, 0) == body(plan, texts, compiled, 2, 0)
    assert body(plan, texts, eager, 2, 0) != body(plan, texts, eager, 3, 0)
    assert body(plan, texts, eager, 2, 0) != body(plan, texts, eager, 2, 1)


def test_a_body_requests_exactly_the_cells_batch_and_tokens() -> None:
    cell = Cell(mode="eager", batch_size=16, new_tokens=24)
    sent = json.loads(body(make_plan("quick"), read_prompts(), cell, 1, 0))
    assert len(sent["prompts"]) == 16
    assert (sent["max_new_tokens"], sent["ignore_eos"]) == (24, True)
    assert "profile" not in sent


def test_the_prompts_that_ship_are_64_different_pieces_of_python() -> None:
    texts = read_prompts()
    assert len(texts) == len(set(texts)) == 64
    assert all(20 <= len(text) <= 400 for text in texts)


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
