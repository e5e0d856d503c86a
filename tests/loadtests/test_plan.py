"""Plans: cells, their order and arrivals, prompts, and what is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import launchbound
from loadtests.plan.cells import Cell, PlanError, due_times, order, read_prompts
from loadtests.plan.plan_file import parse_plans, plan_of, read_plan_file, toml_of
from loadtests.plan.presets import PRESETS, describe, estimate_seconds, request_seconds
from loadtests.run.requests import body
from service.cli.options import EXIT_BAD_INPUT
from service.cli.sweep import PlanOptions, chosen_plans
from service.modes import swept_modes
from tests.support.made_plans import make_plan


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


def test_all_modes_of_a_round_get_the_same_prompts() -> None:
    plan = make_plan("quick")
    texts = read_prompts()
    eager, compiled = (Cell(mode=mode, batch_size=4) for mode in ("eager", "compiled"))
    assert body(plan, texts, eager, 2, 0) == body(plan, texts, compiled, 2, 0)
    assert body(plan, texts, eager, 2, 0) != body(plan, texts, eager, 3, 0)
    assert body(plan, texts, eager, 2, 0) != body(plan, texts, eager, 2, 1)


def test_the_estimate_counts_the_sampled_request_of_every_closed_loop_cell_and_round() -> None:
    whole = make_plan("saturation")
    closed = msgspec.structs.replace(whole, cells=tuple(c for c in whole.cells if not c.open_loop))
    assert 0 < len(closed.cells) < len(whole.cells)
    assert whole.sampled_requests == closed.sampled_requests == closed.rounds * len(closed.cells)
    assert f"{closed.requests} requests, on a CPU {closed.sampled_requests} more" in describe(closed)
    one_of_each = sum(map(request_seconds, closed.cells))
    measured = sum(cell.requests * request_seconds(cell) for cell in closed.cells)
    expected = closed.warmup_passes_least * one_of_each + closed.rounds * (measured + one_of_each)
    assert estimate_seconds(closed, "tiny")[0] == pytest.approx(expected)


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


# ---------------------------------------------------------------- files

SMALL = """\
name = "own"
modes = ["eager", "compiled"]
batch_sizes = [1, 4]
rounds = 8

# a block
[[closed_loop]]
new_tokens = [4, 8]
concurrency = [1, 2]

[[open_loop]]
batch_sizes = 4
loads = [0.5]
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "own.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("changed", [False, True])
def test_a_preset_written_as_a_plan_file_is_the_same_plan(preset: str, changed: bool, tmp_path: Path) -> None:
    options = {"seed": 7, "modes": "eager,no_grad", "batch_sizes": "2,8"} if changed else {}
    chosen = chosen_plans(PlanOptions(preset=preset, **options), own_device="cpu")[0]  # type: ignore[arg-type]
    own = (7, ["eager", "no_grad"], [2, 8]) if changed else (0, swept_modes("cpu"))
    plan = make_plan(preset, *own)  # type: ignore[arg-type]
    (read,) = read_plan_file(written(tmp_path, toml_of(chosen.document)))
    assert plan == chosen.plan == plan_of(read)
    assert (read.modes, read.model, read.starts) == (plan.modes, None, 1)


def test_a_table_names_batch_sizes_by_their_place_or_by_number(tmp_path: Path) -> None:
    head = 'name = "own"\nbatch_sizes = [1, 2, 8]\nrounds = 1\nreplicas = true\n[[closed_loop]]\n'
    for named, sizes in (('"all"', [1, 2, 8]), ('["middle", "smallest"]', [1, 2]), ("8", [8])):
        (document,) = read_plan_file(written(tmp_path, f"{head}batch_sizes = {named}\n"))
        assert parse_plans(toml_of(document)) == [document]
        assert (plan_of(document).batch_sizes, plan_of(document).replicas) == (sizes, True)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("rounds = 8", "rounds = ", "not TOML: Invalid value (at line 4"),
        ("rounds = 8", "ronds = 8", "unknown field `ronds`"),
        ("rounds = 8", "rounds = 8\nrounds_most = 4", "rounds_most is 4, less than the 8"),
        ("rounds = 8", "", "missing required field `rounds`"),
        ("loads = [0.5]", "loads = [3.5]", "Expected `float` <= 3.0 - at `$.open_loop[0].loads"),
        ("loads = [0.5]", "requests = 3", "either `loads`, shares of each mode"),
        ("loads = [0.5]", "loads = [0.5]\nrates = [9]", "or `rates`, per second - at `$.open_loop[0]`"),
        ("loads = [0.5]", 'loads = [0.5]\narrivals = "even"', "'even' - at `$.open_loop[0].arrivals`"),
        ("concurrency = [1, 2]", "concurrency = 8", "3 requests per round are over before 8"),
        ("batch_sizes = 4", 'batch_sizes = "large"', "docs/sweeps.md has every key and its values"),
        ('"compiled"]', '"fastest"]', "unknown mode fastest; try some of eager"),
        ('["eager", "compiled"]', '["compiled"]', "'eager' is missing: every speed-up is against it, add it"),
        ("[[open_loop]]\nbatch_sizes = 4\nloads = [0.5]", "[[closed_loop]]\nnew_tokens = 4", "plan twice"),
        (SMALL[SMALL.index("# a") :], "", "there is no [[closed_loop]]: add one"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_file_its_place_and_a_remedy(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    assert old in SMALL
    with pytest.raises(PlanError) as refused:
        read_plan_file(written(tmp_path, SMALL.replace(old, new)))
    assert str(refused.value).startswith(f"{tmp_path / 'own.toml'}: ")
    assert expected in str(refused.value)


def test_options_replace_what_the_plan_says_and_are_kept(tmp_path: Path) -> None:
    (chosen,) = chosen_plans(PlanOptions(written(tmp_path, SMALL), seed=3, batch_sizes="4,8"))
    assert (chosen.plan.seed, chosen.plan.batch_sizes, chosen.from_file) == (3, [4, 8], True)
    assert chosen.overrides == {"seed": 3, "batch_sizes": [4, 8]}
    assert chosen_plans(PlanOptions())[0].overrides == {}
    with pytest.raises(PlanError, match="batch size 4 is not one of the plan's, 1"):
        chosen_plans(PlanOptions(written(tmp_path, SMALL), batch_sizes="1"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--preset=quick", "--plan=a.toml"], "leave one out"),
        (["--plan=missing.toml"], "name a TOML file"),
        (["--modes=compiled"], "every speed-up is against it"),
        (["--batch-sizes=0"], "at least 1"),
        (["--preset=huge"], "'huge' is not one of 'quick', 'standard'"),
        (["--batch-sizes=two"], "two"),
    ],
)
def test_options_that_contradict_are_bad_input(options: list[str], message: str) -> None:
    shown = CliRunner().invoke(launchbound.app, ["sweep", *options])
    assert shown.exit_code == EXIT_BAD_INPUT
    assert message in shown.stderr
