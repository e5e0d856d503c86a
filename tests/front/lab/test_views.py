"""Play, Compare, Live and Runs: what the pages show is what the service answers."""

from __future__ import annotations

import json
from statistics import fmean
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Response, Route
from prometheus_client.parser import text_string_to_metric_families

from loadtests.report.formatting import significant, whole
from tests.support.browser import NARROW, Tab, tab
from tests.support.serving import BODY, GENERATE, Front, events, running, until

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
    *_, (name, answer) = events(bodies[0].splitlines())
    assert name == "result"
    return answer


def duration(seconds: float) -> str:
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
    lab.page.locator("text=Show the data").click()
    assert json.loads(lab.text(".data pre")) == answer
    with lab.page.expect_download() as saved:
        lab.page.locator("text=Save as play.json").click()
    assert json.loads(saved.value.path().read_text()) == answer


def test_while_tokens_come_the_page_says_that_the_clock_is_its_own(browser: Browser, front: Front) -> None:
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
    front.renew()


def test_a_mode_that_is_not_ready_cannot_be_chosen(fake_lab: Tab, front: Front) -> None:
    front.command("!state compiled failed")
    front.command("!state no_grad warming")
    fake_lab.open("/lab/play?mode=compiled", "form textarea")
    options = fake_lab.page.locator(".options input")
    disabled = [not options.nth(place).is_enabled() for place in range(options.count())]
    assert disabled == [mode["state"] != "ready" for mode in front.http.get("/v1/modes").json()["modes"]]
    assert "failed: compiled" in fake_lab.text(".service")
    assert fake_lab.page.locator(".options label:has(input:checked)").inner_text() == "eager"
    front.renew()


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


def compared(opened: Tab) -> dict[str, Any]:
    with opened.page.expect_response("**/v1/compare") as answered:
        opened.page.locator("text=/^Compare \\d/").click()
    opened.page.wait_for_selector("[data-mode]")
    answer: dict[str, Any] = answered.value.json()
    return answer


def test_every_mode_has_its_numbers(lab: Tab) -> None:
    lab.open("/lab/compare?batch=4&tokens=4&rounds=8", "form textarea")
    answer = compared(lab)
    assert [result["mode"] for result in answer["results"]] == ["eager", "inference_mode"]
    for result in answer["results"]:
        card = f"[data-mode={result['mode']}]"
        assert float(lab.value(f"{card} [data-median]", "data-median")) == result["median_seconds"]
        assert duration(result["median_seconds"]) in lab.text(card)
        for part in ("dispatch", "kernel"):
            shown = lab.value(f"{card} [data-part={part}]", "data-seconds")
            assert float(shown) == result[f"{part}_seconds"]
    speedup = answer["results"][1]["speedup"]
    ends = "–".join(significant(speedup[end]) for end in ("low", "high"))
    assert f"{significant(speedup['ratio'])}× ({ends}, n = 8) over eager" in lab.text(
        "[data-mode=inference_mode]"
    )
    equal = answer["results"][1]["text_equal"]
    assert ("All modes wrote the same text" in lab.text("main")) == equal
    assert lab.violations() == []


def test_a_text_that_differs_is_named(browser: Browser, front: Front) -> None:
    result = dict.fromkeys(("dispatch_seconds", "samples", "speedup"))
    result |= {"median_seconds": 0.2, "kernel_seconds": 0.1}
    gain = {"ratio": 1.5, "low": None, "high": None, "vs": "eager"}
    other = {"mode": "no_grad", "effective": "other", "text_equal": False, "speedup": gain}
    modes = [{**result, "mode": "eager", "effective": "eager", "text_equal": True}, {**result, **other}]
    with tab(browser, front.url, NARROW) as opened:
        answer = {"batch_size": 1, "results": modes}
        opened.page.route("**/v1/compare", lambda route: route.fulfill(json=answer))
        opened.open("/lab/compare?rounds=1", "form textarea")
        compared(opened)
        assert "Not the text of eager: no_grad." in opened.text("main")
        assert "another text than eager" in opened.text("[data-mode=no_grad]")
        assert "ran as other" in opened.text("[data-mode=no_grad]")
        assert "no interval, n = 1" in opened.text("[data-mode=no_grad]")
        assert "not measured here" in opened.text("[data-mode=no_grad] [data-part=dispatch]")
        assert opened.reach() <= NARROW[0]


def test_the_curve_is_the_mean_of_the_runs_of_this_page(lab: Tab) -> None:
    lab.open("/lab/compare?tokens=4&curve=inference_mode", "form textarea")
    responses: list[Response] = []
    lab.page.on("response", lambda response: responses.append(response))
    assert "No step of inference_mode has been measured" in lab.text("main")
    lab.page.locator("text=Measure every batch").click()
    lab.page.wait_for_selector("[data-crossing]")
    rows = lab.page.locator("table tbody tr")
    lab.page.wait_for_function("() => document.querySelectorAll('table tbody tr').length === 2")
    lab.page.wait_for_function("() => !document.querySelector('[role=status]')")
    answers = [response.json() for response in responses if response.url.endswith("/generate")]
    assert [answer["batch_size"] for answer in answers] == [1, 1, 1, 4, 4, 4]
    assert {answer["mode"]["requested"] for answer in answers} == {"inference_mode"}
    for place, batch in enumerate((1, 4)):
        decodes = [answer["timings"]["decode"] for answer in answers if answer["batch_size"] == batch]
        for part in ("dispatch", "kernel"):
            mean = fmean(decode[f"{part}_seconds"] / decode["steps"] for decode in decodes)
            assert rows.nth(place).locator(f"[data-column={part}]").inner_text().startswith(duration(mean))
        assert rows.nth(place).locator("[data-column=runs]").inner_text() == "3"
    assert lab.page.locator("svg[role=img] polyline").count() == 2
    assert lab.violations() == []


def sum_of(http: httpx.Client, name: str, **labels: str) -> float:
    families = text_string_to_metric_families(http.get("/metrics").text)
    found = [s for family in families for s in family.samples if s.name == f"launchbound_{name}"]
    return sum(s.value for s in found if labels.items() <= s.labels.items())


def cell(opened: Tab, mode: str, column: str) -> str:
    row = opened.page.locator(f"tr:has(td[data-column=mode]:text-is('{mode}'))")
    return row.locator(f"[data-column={column}]").inner_text()


def test_the_figures_are_the_metrics(lab: Tab, http: httpx.Client) -> None:
    lab.open("/lab/live", "table tbody tr")
    for _ in range(5):
        assert http.post(GENERATE, json=BODY).status_code == 200
    counted = whole(sum_of(http, "requests_total", mode="eager"))
    until(lambda: cell(lab, "eager", "requests") == counted, "the page to have read the metrics")
    assert lab.text("[data-figure=engine] .figure") == "up"
    assert lab.text("[data-figure='waiting'] .figure") == "0"
    for mode in ("eager", "inference_mode"):
        assert cell(lab, mode, "state") == "ready"
    share = sum_of(http, "device_bound_index", mode="eager", batch="1")
    until(lambda: f"1: {share:.0%}".replace("%", " %") in cell(lab, "eager", "share"), "the newest share")
    for column in ("p50", "p95"):
        # Which bucket of the service's histogram the quantile lies in is the arithmetic of test_parts.
        assert cell(lab, "eager", f"{column}_seconds").endswith("ms")
    assert cell(lab, "eager", "requests_per_second") != "–"
    assert lab.violations() == []


def test_a_hidden_page_reads_nothing(browser: Browser, front: Front) -> None:
    """Time is the page's own here, as is whether it is hidden: a headless browser never hides one."""
    with tab(browser, front.url) as opened:
        opened.page.clock.install()
        opened.open("/lab/live", "table tbody tr")
        opened.page.evaluate("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
        scrapes: list[str] = []
        opened.page.on("request", lambda request: scrapes.append(request.url))
        opened.page.clock.run_for(20_000)
        assert scrapes == []
        opened.page.evaluate("delete document.hidden")
        with opened.page.expect_request("**/metrics"):
            opened.page.clock.run_for(2_000)


CELL = "tr:has(b:text-is('{}')) [data-column={}]"


def test_sweeps_are_listed_as_the_service_describes_them(lab: Tab, http: httpx.Client) -> None:
    runs = http.get("/v1/runs").json()["runs"]
    lab.open("/lab/runs", "table tbody tr")
    rows = lab.page.locator("table tbody tr")
    assert [rows.nth(n).locator("b").inner_text() for n in range(rows.count())] == [
        run["name"] for run in runs
    ]
    before = next(run for run in runs if run["name"] == "before")
    assert lab.text(CELL.format("before", "headline")) == before["headline"]
    assert lab.text(CELL.format("before", "valid")) == ("passed" if before["valid"] else "failed")
    assert "no report yet" in lab.text(CELL.format("after", "headline"))


def test_a_report_opens_in_a_page_apart_and_draws_itself(lab: Tab) -> None:
    """Its scripts run, and within the sandbox: it has no origin and reaches nothing."""
    lab.open("/lab/runs", "table tbody tr")
    with lab.page.context.expect_page() as opened:
        lab.page.locator("a:has-text('open')").click()
    report = opened.value
    problems: list[str] = []
    report.on("pageerror", lambda error: problems.append(str(error)))
    report.wait_for_selector(".plot .main-svg")
    assert report.evaluate("self.origin") == "null"
    assert report.evaluate("fetch('/v1/modes').then(() => 'reached', () => 'kept out')") == "kept out"
    assert problems == []
