"""Play: the text streams, and the numbers are those of the stream's last event."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.sync_api import Browser, Route

from loadtests.report.formatting import significant
from service.front import study_runner
from tests.support.browser import NARROW, Tab, tab
from tests.support.serving import BODY, Front, running, until

pytestmark = pytest.mark.browser

RESULT = "[data-total]"


def generated(opened: Tab) -> dict[str, Any]:
    """Press Generate; the answer as the service sent it, read on its way to the page."""
    bodies: list[str] = []

    def pass_on(route: Route) -> None:
        response = route.fetch()
        bodies.append(response.text())
        route.fulfill(response=response)

    opened.page.route("**/generate", pass_on)
    opened.page.locator("main form button").click()
    opened.page.wait_for_selector(RESULT)
    return result_of(bodies[0])


def result_of(body: str) -> dict[str, Any]:
    last = body.strip().split("\n\n")[-1]
    name, _, data = last.partition("\n")
    assert name == "event: result"
    answer: dict[str, Any] = json.loads(data.removeprefix("data: "))
    return answer


def chosen(opened: Tab, name: str) -> None:
    """Until the address has this choice."""
    opened.page.wait_for_function("(name) => location.search.includes(name)", arg=name)


def duration(seconds: float) -> str:
    """As the page writes seconds."""
    scale, unit = next((s, u) for s, u in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")) if seconds >= s or u == "µs")
    return f"{significant(seconds / scale)} {unit}"


def test_text_and_numbers_are_the_services(lab: Tab) -> None:
    lab.open("/lab/play?mode=inference_mode&batch=4&tokens=8", "form textarea")
    answer = generated(lab)
    timings = answer["timings"]
    assert answer["mode"]["requested"] == "inference_mode"
    assert answer["batch_size"] == 4
    assert answer["usage"]["completion_tokens"] == 32
    assert (lab.page.locator(".completion").text_content() or "").endswith(answer["outputs"][0]["text"])
    assert float(lab.value(RESULT, "data-total")) == timings["total_seconds"]
    assert lab.text(RESULT) == duration(timings["total_seconds"])
    for part in ("queue", "dispatch", "kernel", "other"):
        assert float(lab.value(f"[data-part={part}]", "data-seconds")) == timings[f"{part}_seconds"]
        assert duration(timings[f"{part}_seconds"]) in lab.text(f"[data-part={part}]")
    assert timings["sources"]["dispatch"] in lab.text("[data-part=dispatch]")
    assert f"Samples of decode: {timings['decode']['kernel_samples']} kernel" in lab.text("[aria-label=Time]")
    assert f"{duration(timings['time_to_first_token_seconds'])} to the first token" in lab.text("main")
    assert lab.value("[data-effective]", "data-effective") == answer["mode"]["effective"]
    assert lab.violations() == []


def test_the_data_is_the_answer(lab: Tab) -> None:
    lab.open("/lab/play?tokens=4", "form textarea")
    answer = generated(lab)
    lab.page.locator("text=Show the data").click()
    assert json.loads(lab.text(".data pre")) == answer
    with lab.page.expect_download() as saved:
        lab.page.locator("text=Save as play.json").click()
    assert json.loads(saved.value.path().read_text()) == answer


def test_a_prompt_is_sent_by_keyboard_alone(lab: Tab) -> None:
    lab.open("/lab/play?mode=eager&tokens=4", "form textarea")
    page = lab.page
    page.locator("textarea").focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("import os")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    chosen(lab, "mode=inference_mode")
    for name in ("batch=4", "tokens=8"):
        page.keyboard.press("Tab")
        page.keyboard.press("ArrowRight")
        chosen(lab, name)
    page.keyboard.press("Tab")
    with page.expect_response("**/inference_mode/generate") as answered:
        page.keyboard.press("Enter")
    page.wait_for_selector(RESULT)
    sent = answered.value.request.post_data_json
    assert sent == {"prompts": ["import os"] * 4, "max_new_tokens": 8, "stream": True}


def test_while_tokens_come_the_page_says_that_the_clock_is_its_own(browser: Browser) -> None:
    with running() as front:
        front.await_ready()
        with tab(browser, front.url, NARROW) as opened:
            opened.open("/lab/play?mode=eager&tokens=4", "form textarea")
            opened.page.locator("textarea").fill("!hold")
            opened.page.locator("main form button").click()
            opened.page.wait_for_selector("text=4 of 4 tokens")
            assert opened.text(".completion").endswith("w0 w1 w2 w3")
            assert "page's clock" in opened.text("[aria-label=Time]")
            assert opened.page.locator(RESULT).count() == 0
            assert opened.reach() <= NARROW[0]
            opened.page.locator("text=Cancel").click()
            opened.page.wait_for_selector("text=Until it was stopped")


def test_a_mode_that_is_not_ready_cannot_be_chosen(browser: Browser) -> None:
    with (
        running(states={"compiled": "failed", "no_grad": "warming"}) as front,
        tab(browser, front.url) as opened,
    ):
        until(lambda: front.http.get("/v1/modes").json()["engine"], "the engine")
        opened.open("/lab/play?mode=compiled", "form textarea")
        options = opened.page.locator(".options input")
        disabled = [not options.nth(place).is_enabled() for place in range(options.count())]
        assert disabled == [mode["state"] != "ready" for mode in front.http.get("/v1/modes").json()["modes"]]
        assert "failed: compiled" in opened.text(".service")
        assert opened.page.locator(".options label:has(input:checked)").inner_text() == "eager"


def test_what_is_not_measured_is_said_to_be_absent(browser: Browser) -> None:
    with running(no_samples="a reason") as front, tab(browser, front.url) as opened:
        front.await_ready()
        opened.open("/lab/play?mode=eager&tokens=4", "form textarea")
        answer = generated(opened)
        assert answer["timings"]["dispatch_seconds"] is None
        assert "not measured here" in opened.text("[data-part=dispatch]")
        assert opened.value("[data-part=dispatch]", "data-seconds") == ""
        assert "dispatch and kernel in it" in opened.text("[data-part=other]")
        assert "cannot be told apart: a reason." in opened.text("[aria-label=Time]")


def test_during_a_sweep_nothing_runs_and_the_page_says_why(browser: Browser) -> None:
    with running() as front:
        front.await_ready()
        sweeping(front)
        with tab(browser, front.url) as opened:
            opened.open("/lab/play?mode=eager", "form textarea")
            opened.page.locator("main form button").click()
            alert = opened.page.wait_for_selector("[data-type=run_in_progress]")
            assert alert is not None
            assert "A sweep is measuring" in alert.inner_text()
            assert opened.violations() == []
            opened.expected("409")


def sweeping(front: Front) -> None:
    answer = front.generate(headers={"X-Launchbound-Run": "20260101-1"}, **BODY)
    assert answer.status_code == 200
    assert front.state.studies.sweeps.seconds_left() <= study_runner.RUN_SECONDS
