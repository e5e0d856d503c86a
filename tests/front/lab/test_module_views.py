"""The lab of a service of a user's module: each view's form, what it sends, and what it shows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Browser

from loadtests.report.formatting import significant
from service.front.routes.pages import VIEWS
from tests.front.lab.study_pages import answer, call, data, keep, real, row, rows, stream
from tests.front.lab.test_frame import SETTLED, check
from tests.front.lab.test_study_views import gpu_timeline
from tests.front.lab.test_views import cell, duration, sum_of
from tests.support.browser import NARROW, Tab, tab
from tests.support.made_plans import make_report
from tests.support.made_results import make_module
from tests.support.serving import Front, running, until

pytestmark = pytest.mark.browser

OF_TOKENS = ("tape",)
"""The views of what a module has not."""

STEP_SECONDS = 40e-6
"""Of each call, as the fake engine has it."""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """A front that serves a module in batches of 1 and 4, and whose results folder has a sweep of one."""
    folder = tmp_path_factory.mktemp("results")
    make_report(make_module(folder / "ranker"))
    settings = {"model": "ranker.py:build", "results_folder": folder, "modes": ["eager", "no_grad"]}
    with running(settings) as front:
        front.await_ready()
        yield front


@pytest.fixture
def page(browser: Browser, module: Front) -> Iterator[Tab]:
    with tab(browser, module.url) as opened:
        yield opened


@pytest.fixture
def sized(module: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module's inputs have two sizes."""
    client = module.state.client
    assert client.engine is not None
    monkeypatch.setattr(
        client, "engine", msgspec.structs.replace(client.engine, input_sizes=["128", "large"])
    )


def legends(page: Tab) -> list[str]:
    return page.page.locator("main .control > label, main legend").all_inner_texts()


def sent(page: Tab, button: str, address: str) -> Any:
    """The body that the page posts to `address` when `button` is pressed."""
    with page.page.expect_request(address) as request:
        page.page.get_by_role("button", name=button).click()
    return json.loads(request.value.post_data or "")


@pytest.mark.parametrize("name", [view for view in VIEWS if view not in OF_TOKENS])
def test_a_view_works_without_a_word_of_prompts_and_is_fit_for_everybody(page: Tab, name: str) -> None:
    page.open(f"/lab/{name}", SETTLED)
    links = page.page.locator("nav a").all_inner_texts()
    assert len(links) == len(VIEWS) - len(OF_TOKENS) + 1
    assert "Tape" not in links
    said = page.text("main").lower()
    assert [word for word in ("prompt", "decode", "nan", "undefined", "null") if word in said] == []
    check(page)


@pytest.mark.parametrize("name", OF_TOKENS)
def test_a_view_of_what_a_module_has_not_says_so_in_one_sentence(page: Tab, name: str) -> None:
    page.open(f"/lab/{name}", ".state.empty")
    said = page.text(".state.empty")
    assert "what only a language model has" in said
    assert (said.count("."), said[-1]) == (1, ".")
    assert page.page.locator("main button").count() == 0
    assert page.violations() == []
    page.page.locator(".state.empty a[href='/lab/play']").click()
    page.page.wait_for_selector("main form")


def test_play_calls_the_module_and_shows_the_answers_numbers_and_outputs(page: Tab) -> None:
    page.open("/lab/play?mode=no_grad&batch=4&calls=20&outputs=on", "main form")
    assert legends(page) == ["Mode", "Batch", "Seed of the inputs", "Calls in a row"]
    seed = page.page.get_by_label("Seed of the inputs")
    for wrong in ("", "-1", "1.5", "x"):
        seed.fill(wrong)
        assert "Write a whole number" in page.text("main form")
        assert page.page.locator("main form button").is_disabled()
    seed.fill("7")
    with page.page.expect_response("**/v1/modes/no_grad/forward") as answered:
        body = sent(page, "Call", "**/v1/modes/no_grad/forward")
    assert body == {"batch_size": 4, "seed": 7, "calls": 20, "outputs": True}
    page.page.wait_for_selector("[data-total]")
    found = answered.value.json()
    timings = found["timings"]
    assert page.text("[data-total]") == duration(timings["total_seconds"])
    for part in ("queue", "dispatch", "kernel", "other"):
        assert float(page.value(f"[data-part={part}]", "data-seconds")) == timings[f"{part}_seconds"]
    ends = (duration(timings["forward"][f"dispatch_{end}_seconds"]) for end in ("low", "high"))
    assert f"sampled, {' to '.join(ends)}" in page.text("[data-part=dispatch]")
    assert f"Samples of forward: {timings['forward']['kernel_samples']} kernel" in page.text("main")
    assert f"{duration(STEP_SECONDS)} per call, 20 in a row" in page.text("main")
    assert f"{significant(4 / STEP_SECONDS)} samples per second" in page.text("main")
    assert page.value("[data-effective]", "data-effective") == found["mode"]["effective"] == "no_grad"
    cells = row(page, "What the last call returned")
    assert list(cells.values()) == ["output.scores", "float32", "4 × 2", "0.500, -1.00, 0.500, -1.00, …"]
    assert page.violations() == []
    assert data(page) == found


def test_any_tree_of_outputs_is_listed_and_what_json_cannot_say_is_said(page: Tab, module: Front) -> None:
    found = module.http.post("/v1/modes/eager/forward", json={"batch_size": 1}).json()
    tensor = {"dtype": "bool", "shape": [], "data": True}
    empty = {"dtype": "int64", "shape": [0, 3], "data": []}
    outputs = [{"a": tensor, "b": None}, 3, {"dtype": "float32", "shape": [2], "data": [None, 0.25]}, empty]
    answer(page, "**/forward", found | {"outputs": outputs})
    page.open("/lab/play?outputs=on", "main form")
    page.page.locator("main form button").click()
    page.page.wait_for_selector("[data-total]")
    caption = "What the last call returned"
    assert [list(row(page, caption, place).values()) for place in range(rows(page, caption))] == [
        ["output[0].a", "bool", "scalar", "true"],
        ["output[0].b", "–", "–", "None"],
        ["output[1]", "–", "–", "3"],
        ["output[2]", "float32", "2", "NaN or ∞, 0.250"],
        ["output[3]", "int64", "0 × 3", ""],
    ]


def test_so_many_calls_are_chosen_that_they_take_a_twentieth_of_a_second(page: Tab) -> None:
    page.open("/lab/play", "main form")
    chosen = page.page.get_by_role("slider", name="Calls in a row").get_attribute("aria-valuetext")
    assert chosen == "1000"
    assert 1000 * STEP_SECONDS <= 0.05 < 2000 * STEP_SECONDS


@pytest.mark.usefixtures("sized")
def test_sizes_are_chosen_where_the_module_has_some_and_studies_name_the_first(page: Tab) -> None:
    page.open("/lab/play?size=large", "main form")
    assert "Size" in legends(page)
    assert sent(page, "Call", "**/forward")["size"] == "large"
    for name in ("timeline", "dispatcher", "budget"):
        page.open(f"/lab/{name}", "button.primary")
        assert "the module's first size, 128." in page.text("main")
    page.open("/lab/compare?size=large", "main form")
    assert sent(page, "Compare 2 modes", "**/v1/compare")["size"] == "large"


def test_an_error_of_the_service_is_shown_with_its_remedy(page: Tab) -> None:
    problem = {"type": "invalid_request", "message": "outputs: leave them out", "param": "outputs"}
    answer(page, "**/forward", {"error": problem}, 422)
    page.open("/lab/play", "main form")
    page.page.locator("main form button").click()
    assert "outputs: leave them out" in page.text(".failed")
    assert page.page.locator("[data-total]").count() == 0
    page.expected("422")


def test_compare_shows_ratios_with_intervals_times_per_call_and_whether_outputs_agree(
    page: Tab, module: Front
) -> None:
    page.open("/lab/compare?batch=4&calls=50&seed=3", "main form")
    assert legends(page)[:5] == ["Batch", "Seed of the inputs", "Calls in a row", "Modes", "Rounds"]
    with page.page.expect_response("**/v1/compare") as answered:
        body = sent(page, "Compare 2 modes", "**/v1/compare")
    assert body == {
        "batch_size": 4, "seed": 3, "calls": 50, "repeats": 8, "modes": ["eager", "no_grad"]
    }  # fmt: skip
    page.page.wait_for_selector("[data-mode]")
    found = answered.value.json()
    for result in found["results"]:
        card = page.text(f"[data-mode={result['mode']}]")
        assert duration(result["median_seconds"]) in card
        assert f"{duration(result['median_seconds'] / 50)} per call, 50 in a row" in card
    gain = found["results"][1]["speedup"]
    ends = "–".join(significant(gain[end]) for end in ("low", "high"))
    said = page.text("[data-mode=no_grad]")
    assert f"{significant(gain['ratio'])}× ({ends}, n = 8) over eager" in said
    parity = found["results"][1]["parity"]
    assert f"outputs as eager's: largest difference {significant(parity['max_abs_logit_difference'])}" in said
    assert "All modes returned what eager does" in page.text("main")
    assert "of the calls alone" in page.text("main")
    assert page.violations() == []
    assert data(page) == found


def compared(module: Front, modes: list[str], parity: dict[str, Any] | None) -> Any:
    """An answer of compare, in which the last mode has that parity, or with None none."""
    body = {"batch_size": 1, "calls": 1, "repeats": 1, "modes": modes}
    found = module.http.post("/v1/compare", json=body).json()
    last = found["results"][-1]
    last["parity"] = parity and last["parity"] | parity
    return found


def test_modes_are_chosen_and_one_that_was_not_compared_with_eager_is_named(page: Tab, module: Front) -> None:
    answer(page, "**/v1/compare", compared(module, ["no_grad"], None))
    page.open("/lab/compare?calls=1&rounds=1", "main form")
    page.page.get_by_role("checkbox", name="eager").uncheck(force=True)
    assert "modes=no_grad" in page.page.url
    assert sent(page, "Compare 1 mode", "**/v1/compare")["modes"] == ["no_grad"]
    page.page.wait_for_selector("[data-mode]")
    assert "Not the outputs of eager, or not compared with them: no_grad." in page.text("main")
    assert "outputs not compared with eager's" in page.text("[data-mode=no_grad]")
    assert "eager did not run" in page.text("[data-mode=no_grad]")
    page.page.get_by_role("checkbox", name="no_grad").uncheck(force=True)
    assert page.page.get_by_role("button", name="Compare 0 modes").is_disabled()


def test_where_eager_is_not_served_ratios_are_over_inference_mode(browser: Browser) -> None:
    with running({"model": "ranker.py:build", "modes": ["inference_mode", "compiled"]}) as front:
        front.await_ready()
        with tab(browser, front.url) as opened:
            opened.open("/lab/compare?calls=1", "main form")
            with opened.page.expect_response("**/v1/compare") as answered:
                opened.page.get_by_role("button", name="Compare 2 modes").click()
            opened.page.wait_for_selector("[data-mode]")
            gain = answered.value.json()["results"][1]["speedup_without_compiler"]
            assert f"{significant(gain['ratio'])}×" in opened.text("[data-mode=compiled]")
            assert "over inference_mode" in opened.text("[data-mode=compiled]")
            assert "eager did not run" in opened.text("[data-mode=inference_mode]")


def test_a_mode_that_returned_something_else_is_named(page: Tab, module: Front) -> None:
    unlike = {"passed": False, "max_abs_logit_difference": 0.5}
    answer(page, "**/v1/compare", compared(module, ["eager", "no_grad"], unlike))
    page.open("/lab/compare?calls=1&rounds=1", "main form")
    page.page.get_by_role("button", name="Compare 2 modes").click()
    page.page.wait_for_selector("[data-mode]")
    assert "Not the outputs of eager, or not compared with them: no_grad." in page.text("main")
    assert "other outputs than eager: largest difference 0.500" in page.text("[data-mode=no_grad]")


def test_the_curve_is_of_a_call_and_of_this_request_alone(page: Tab) -> None:
    page.open("/lab/compare?calls=10&curve=no_grad", "main form")
    assert page.text("#curve") == "One call, by batch"
    page.page.get_by_role("button", name="Measure every batch").click()
    page.page.wait_for_function("() => document.querySelectorAll('table tbody tr').length === 2")
    page.page.wait_for_function("() => !document.querySelector('[role=status]')")
    for place, batch in enumerate(("1", "4")):
        cells = row(page, "One call of no_grad", place)
        assert (cells["batch"], cells["runs"]) == (batch, "3")
        assert cells["dispatch"].startswith(duration(0.6 * STEP_SECONDS))
    assert page.page.locator("svg[role=img] polyline").count() == 2
    assert "ms per call" in page.page.locator("svg[role=img]").inner_html()
    page.page.get_by_label("Seed of the inputs").fill("9")
    page.page.wait_for_selector("text=No step of no_grad has been measured here with this request")


def test_each_batch_of_the_curve_has_as_many_calls_as_fit_and_stays_where_another_is_chosen(
    page: Tab, module: Front
) -> None:
    modes = module.http.get("/v1/modes").json()
    for split in (one for mode in modes["modes"] for one in mode["splits"]):
        split["step_seconds"] = 0.0025 * split["batch"]
    answer(page, "**/v1/modes", modes)
    bodies: list[dict[str, Any]] = []
    page.page.on(
        "request", lambda one: one.method == "POST" and bodies.append(json.loads(one.post_data or ""))
    )
    page.open("/lab/compare?curve=no_grad", "main form")
    page.page.get_by_role("button", name="Measure every batch").click()
    page.page.wait_for_function("() => document.querySelectorAll('table tbody tr').length === 2")
    page.page.wait_for_function("() => !document.querySelector('[role=status]')")
    assert [(body["batch_size"], body["calls"]) for body in bodies] == [(1, 20)] * 3 + [(4, 5)] * 3
    page.page.get_by_role("slider", name="Batch").press("ArrowRight")
    assert page.page.get_by_role("slider", name="Calls in a row").get_attribute("aria-valuetext") == "5"
    assert rows(page, "One call of no_grad") == 2


def test_where_parts_cannot_be_told_apart_no_empty_chart_is_drawn(browser: Browser) -> None:
    with running({"model": "ranker.py:build"}, no_samples="a reason") as front:
        front.await_ready()
        with tab(browser, front.url, NARROW) as opened:
            opened.open("/lab/compare?batch=1", "main form")
            opened.page.get_by_role("button", name="Measure batch 1").click()
            opened.page.wait_for_selector("table tbody tr")
            assert "cannot be told apart here" in opened.text("[data-crossing]")
            assert opened.page.locator("svg").count() == 0
            assert opened.reach() <= NARROW[0]
            opened.open("/lab/play", "main form")
            opened.page.locator("main form button").click()
            opened.page.wait_for_selector("[data-total]")
            assert "cannot be told apart: a reason." in opened.text("main")


def test_studies_are_of_the_one_phase_which_is_not_asked_for(page: Tab) -> None:
    finding = gpu_timeline() | {"phase": "forward"}
    kept = {"id": "timeline-1", "study": "timeline", "arguments": {}, "finding": finding}
    stream(page, "**/v1/studies/*", ("finding", kept | {"created": "2026-01-01T00:00:00+00:00"}))
    page.open("/lab/timeline?batch=4", "button.primary")
    assert legends(page) == ["Mode", "Against", "Batch"]
    body = sent(page, "Draw both steps", "**/v1/studies/timeline")
    assert body == {"mode": "eager", "against": "no_grad", "batch_size": 4, "phase": "forward"}
    page.page.wait_for_selector(".drawing svg")
    assert page.page.locator("h2:text-is('One forward step, batch 4, cuda')").count() == 1
    page.open("/lab/dispatcher", "button.primary")
    assert "Phase" not in legends(page)
    body = sent(page, "List the step", "**/v1/studies/operators")
    assert body == {"mode": "eager", "batch_size": 1, "phase": "forward"}


def test_a_budget_is_of_calls(page: Tab, lab_url: str) -> None:
    page.open(f"/lab/budget?finding={keep(page, 'budget', real(lab_url, 'budget')[1])}", ".whatif")
    assert rows(page, "Per call on cpu") > 0
    assert "decode" not in page.text("main")


def test_an_operators_call_is_measured_as_for_any_model(page: Tab) -> None:
    page.open(f"/lab/dispatcher?finding={keep(page, 'operator', call())}", ".scrubber")
    assert rows(page, "Slices, from") == len(call()["slices"])


def test_live_shows_calls_and_samples_by_the_metrics_of_forward(page: Tab, module: Front) -> None:
    page.open("/lab/live", "table tbody tr")
    assert "tokens" not in page.text("main")
    before = sum_of(module.http, "step_batch_rows_sum", mode="no_grad")
    for _ in range(3):
        module.http.post("/v1/modes/no_grad/forward", json={"batch_size": 4, "calls": 5}).raise_for_status()
    assert sum_of(module.http, "step_batch_rows_sum", mode="no_grad") - before == 3 * 4 * 5
    until(lambda: "4:" in cell(page, "no_grad", "step"), "the page to have read the metrics")
    assert cell(page, "no_grad", "step") == f"4: {duration(STEP_SECONDS)}"
    assert "1: 40 %, headroom 2.50×" in cell(page, "no_grad", "share")
    until(lambda: float(page.text("[data-figure='samples per second'] .figure")) > 0, "a rate of samples")
    assert page.reach() <= page.page.viewport_size["width"]  # type: ignore[index]


def test_a_sweep_of_a_module_is_listed_with_its_answer(page: Tab, module: Front) -> None:
    (run,) = module.http.get("/v1/runs").json()["runs"]
    page.open("/lab/runs", "table tbody tr")
    assert run["headline"]
    cells = row(page, "Sweeps, newest first")
    assert cells["headline"] == run["headline"]
    assert cells["name"].startswith("ranker")
    assert page.page.get_by_role("link", name="Open the report of ranker").count() == 1
