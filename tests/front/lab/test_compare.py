"""Compare: bars, texts and speed-ups are the answer's, and the curve is of runs made on the page."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest
from playwright.sync_api import Browser, Response

from loadtests.report.formatting import significant
from tests.front.lab.test_play import duration
from tests.support.browser import NARROW, Tab, tab
from tests.support.serving import Front

pytestmark = pytest.mark.browser


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


def test_one_round_has_no_interval(lab: Tab) -> None:
    lab.open("/lab/compare?tokens=4&rounds=1", "form textarea")
    compared(lab)
    assert "no interval, n = 1" in lab.text("[data-mode=inference_mode]")


def test_a_text_that_differs_is_named(browser: Browser, front: Front) -> None:
    result = {
        "median_seconds": 0.2,
        "dispatch_seconds": None,
        "kernel_seconds": 0.1,
        "samples": None,
        "speedup": None,
    }
    modes = [{**result, "mode": "eager", "effective": "eager", "text_equal": True},
             {**result, "mode": "no_grad", "effective": "other", "text_equal": False}]  # fmt: skip
    with tab(browser, front.url, NARROW) as opened:
        answer = {"batch_size": 1, "results": modes}
        opened.page.route("**/v1/compare", lambda route: route.fulfill(json=answer))
        opened.open("/lab/compare", "form textarea")
        compared(opened)
        assert "Not the text of eager: no_grad." in opened.text("main")
        assert "another text than eager" in opened.text("[data-mode=no_grad]")
        assert "ran as other" in opened.text("[data-mode=no_grad]")
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
