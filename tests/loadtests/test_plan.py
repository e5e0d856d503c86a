"""Plans: cells, their order and arrivals, objectives, prompts, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import launchbound
from loadtests.plan.cells import Cell, PlanError, Slo, SloTable, due_times, order, parse_slo, slo_table
from loadtests.plan.plan_file import parse_plan, plan_of, read_plan_file, toml_of
from loadtests.plan.presets import (
    PRESET_FOLDER,
    PRESETS,
    make_plan,
    preset_document,
)
from loadtests.plan.prompts import read_prompts
from loadtests.report.surroundings import reproduce
from loadtests.run.requests import body
from loadtests.run.run_file import SweepRun
from service.cli.options import EXIT_BAD_INPUT
from service.cli.sweep import PlanOptions, chosen_plan
from service.modes import swept_modes


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


# ---------------------------------------------------------------- files

SMALL = """\
name = "own"
modes = ["eager", "compiled"]
batch_sizes = [1, 4]
rounds = 8

# a block
[[closed_loop]]
new_tokens = [
  4,
  8,
]
concurrency = [1, 2]

[[open_loop]]
batch_sizes = 4
loads = [0.5]
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "own.toml"
    path.write_text(text)
    return path


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(PlanError) as refused:
        read_plan_file(written(folder, text))
    return str(refused.value)


def sweep(*options: str) -> tuple[int, str, str]:
    shown = CliRunner().invoke(launchbound.app, ["sweep", *options])
    return shown.exit_code, shown.stdout, shown.stderr


def test_every_preset_is_a_file_of_its_name_and_every_file_a_preset() -> None:
    assert {path.stem for path in PRESET_FOLDER.glob("*.toml")} == set(PRESETS)
    assert all(preset_document(preset).name == preset for preset in PRESETS)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("changed", [False, True])
def test_a_printed_preset_given_back_is_the_same_plan(preset: str, changed: bool, tmp_path: Path) -> None:
    sizes = [2] if preset == "saturation" else [2, 8]  # its SLO is of one latency of eager
    options = ["--seed=7", "--modes=eager,no_grad", f"--batch-sizes={','.join(map(str, sizes))}"]
    options = options if changed else []
    code, text, _ = sweep("--preset", preset, *options, "--dry-run", "--toml")
    assert code == 0
    options_of = {"modes": swept_modes()}
    if changed:
        options_of = {"seed": 7, "modes": ["eager", "no_grad"], "batch_sizes": sizes}
    plan = make_plan(preset, **options_of)  # type: ignore[arg-type]
    read = read_plan_file(written(tmp_path, text))
    assert (plan_of(read), read.modes) == (plan, plan.modes)


LOADED = """\
name = "own"
modes = ["eager"]
batch_sizes = [1]
rounds = 8

[slo]
ttft = 0.05
tpot = 0.01
share = 0.9

[[closed_loop]]

[[open_loop]]
rates = [5, 40.5]
arrivals = "constant"

[[open_loop]]
loads = [0.9, 1.2]
"""


def test_load_past_saturation_is_written_and_read_again(tmp_path: Path) -> None:
    document = read_plan_file(written(tmp_path, LOADED))
    assert parse_plan(toml_of(document)) == document
    plan = plan_of(document)
    assert [cell.name.removeprefix("eager b=1 short n=32 ") for cell in plan.cells if cell.open_loop] == [
        "rate=5/s constant",
        "rate=40.5/s constant",
        "load=0.9",
        "load=1.2",
    ]
    assert plan.slo == Slo(ttft_seconds=0.05, tpot_seconds=0.01, share=0.9)


def test_the_slo_of_the_command_line_replaces_that_of_the_plan_and_is_kept(tmp_path: Path) -> None:
    path = written(tmp_path, LOADED)
    chosen = chosen_plan(PlanOptions(path, slo="e2e=0.2"))
    assert chosen.plan.slo == Slo(e2e_seconds=0.2)
    assert chosen.overrides == {"slo": "e2e=0.2,share=0.95"}
    assert slo_table(chosen.overrides["slo"]).slo == chosen.plan.slo
    assert parse_plan(toml_of(chosen.document)) == chosen.document
    assert chosen_plan(PlanOptions(path, slo="ttft=0.05,tpot=0.01,share=0.9")).overrides == {}
    code, shown, _ = sweep("--preset", "saturation", "--slo", "ttft=0.02,share=0.9", "--dry-run")
    assert code == 0
    assert "SLO: TTFT within 20 ms, for 90 % of the requests" in shown
    chosen = chosen_plan(PlanOptions(preset="saturation", slo="ttft=0.02,share=0.9"))
    run = SweepRun(run="", url="", plan=chosen.plan, seed=0, started="", overrides=chosen.overrides)
    assert "--preset saturation --seed 0 --slo ttft=0.02,share=0.9" in reproduce(run)[-1]


def test_a_table_names_batch_sizes_by_their_place_or_by_number(tmp_path: Path) -> None:
    head = 'name = "own"\nbatch_sizes = [1, 2, 8]\nrounds = 1\nreplicas = true\n[[closed_loop]]\n'
    for named, sizes in (('"all"', [1, 2, 8]), ('["middle", "smallest"]', [1, 2]), ("8", [8])):
        document = read_plan_file(written(tmp_path, f"{head}batch_sizes = {named}\n"))
        assert parse_plan(toml_of(document)) == document
        assert (plan_of(document).batch_sizes, plan_of(document).replicas) == (sizes, True)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("rounds = 8", "rounds = ", "line 4: not TOML"),
        ("rounds = 8", "ronds = 8", "line 4: unknown key `ronds`: did you mean `rounds`?"),
        ("concurrency = [1, 2]", "concurency = 2", "line 12: unknown key `concurency`: did you mean"),
        ("rounds = 8", "rounds = 0", "line 4: `rounds`: expected `int` >= 1: change the value"),
        ("rounds = 8", 'rounds = "8"', "line 4: `rounds`: expected `int"),
        ("rounds = 8", "rounds = 8\nrounds_most = 4", "line 5: rounds_most is 4, less than the 8"),
        ("rounds = 8", "", "`rounds` is missing: add it"),
        ("  8,\n", "  0,\n", "line 8: `new_tokens`: expected `int` >= 1"),
        ("loads = [0.5]", "loads = [3.5]", "line 16: `loads`: expected `float` <= 3.0"),
        ("loads = [0.5]", "rates = [0]", "line 16: `rates`: expected `float` > 0.0"),
        ("loads = [0.5]", "requests = 3", "line 14: give `loads`, shares of each mode"),
        ("loads = [0.5]", "loads = [0.5]\nrates = [9]", "line 14: give `loads`"),
        ("loads = [0.5]", 'loads = [0.5]\narrivals = "even"', "write one of poisson, constant"),
        ("concurrency = [1, 2]", "concurrency = 8", "3 requests per round are over before 8"),
        ("loads = [0.5]", "loads = [0.5]\nnew_tokens = 1\n[slo]\ntpot = 0.1", "leave tpot out of the SLO"),
        ("loads = [0.5]", "loads = [0.5]\nnew_tokens = [1, 2]\n[slo]\ne2e_of_eager = 3", "cells of 2 kinds"),
        ("# a block", "[slo]\nshare = 0.9", "line 6: an SLO without a limit is met by"),
        ("# a block", "[slo]\ne2 = 0.9", "line 7: unknown key `e2`: did you mean `e2e`?"),
        ("# a block", "[slo]\ne2e = 0", "line 7: `e2e`: expected `float` > 0.0"),
        ("# a block", "[slo]\ne2e = 1\nshare = 2", "line 8: `share`: expected `float` <= 1.0"),
        ("batch_sizes = 4", "batch_sizes = 16", "line 15: batch size 16 is not one of the plan's, 1, 4"),
        ("batch_sizes = 4", 'batch_sizes = "large"', "write one of all, smallest, middle, numbers from 1 on"),
        ('"compiled"]', '"fastest"]', "line 2: unknown mode fastest; try some of eager"),
        ('["eager", "compiled"]', '["compiled"]', "line 2: 'eager' is missing"),
        ("[[open_loop]]\nbatch_sizes = 4\nloads = [0.5]", "[[closed_loop]]\nnew_tokens = 4", "line 14: cell"),
        (SMALL[SMALL.index("# a") :], "", "there is no [[closed_loop]]: add one"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_file_its_line_and_a_remedy(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    assert old in SMALL
    message = refusal(tmp_path, SMALL.replace(old, new))
    assert message.startswith(f"{tmp_path / 'own.toml'}, ")
    assert expected in message


def test_options_replace_what_the_plan_says_and_are_kept(tmp_path: Path) -> None:
    chosen = chosen_plan(PlanOptions(written(tmp_path, SMALL), seed=3, batch_sizes="4,8"))
    assert (chosen.plan.seed, chosen.plan.batch_sizes, chosen.from_file) == (3, [4, 8], True)
    assert chosen.overrides == {"seed": 3, "batch_sizes": [4, 8]}
    assert chosen_plan(PlanOptions()).overrides == {}
    with pytest.raises(PlanError, match="batch size 4 is not one of the plan's, 1"):
        chosen_plan(PlanOptions(written(tmp_path, SMALL), batch_sizes="1"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--preset=quick", "--plan=a.toml"], "leave one out"),
        (["--toml"], "add --dry-run"),
        (["--plan=missing.toml"], "name a TOML file"),
        (["--modes=compiled"], "every speed-up is against it"),
        (["--batch-sizes=0"], "at least 1"),
        (["--preset=huge"], "try one of quick"),
        (["--batch-sizes=two"], "two"),
        (["--slo=fast"], "write it as in ttft=0.05"),
        (["--preset=saturation", "--slo=share=0.5"], "without a limit"),
    ],
)
def test_options_that_contradict_are_bad_input(options: list[str], message: str) -> None:
    code, _, errors = sweep(*options)
    assert code == EXIT_BAD_INPUT
    assert message in errors
