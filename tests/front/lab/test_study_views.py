"""The views of studies against a real service: what stands on the page is what the API answered."""

from __future__ import annotations

import pytest
from httpx import Client

from service.anatomy.budget.gains import speedup_with
from tests.front.lab.study_pages import Finding, data, quantity, real, row, rows, the_answer
from tests.support.browser import Tab

pytestmark = pytest.mark.browser

Kept = tuple[str, Finding]


@pytest.fixture
def timeline(lab_url: str) -> Kept:
    return real(lab_url, "timeline")


@pytest.fixture
def tape(lab_url: str) -> Kept:
    return real(lab_url, "tape")


@pytest.fixture
def budget(lab_url: str) -> Kept:
    return real(lab_url, "budget")


@pytest.fixture
def step(lab_url: str) -> Kept:
    return real(lab_url, "operators")


def near(text: str, value: float) -> bool:
    """Whether three digits of `value` stand in `text`."""
    return quantity(text) == pytest.approx(value, rel=6e-3)


def test_a_timeline_shows_the_steps_their_tax_and_the_speedup_of_the_finding(lab: Tab, timeline: Kept) -> None:
    identity, finding = timeline
    lab.open(f"/lab/timeline?finding={identity}", ".drawing svg")
    for place, track in enumerate(finding["tracks"]):
        cells = row(lab, "Both steps", place)
        assert near(cells["wall"], track["wall"]["value"])
        assert near(cells["tax"], track["tax"]["fraction"]["value"])
        assert (cells["mode"], cells["operators"]) == (track["mode"], str(track["operators"]))
        assert (cells["kernels"], cells["launches"]) == ("–", "–")
    assert near(lab.text('section[aria-label="speed-up"]'), finding["speedup"]["value"])
    assert lab.page.locator(".drawing rect.block").count() == sum(len(one["blocks"]) for one in finding["tracks"])
    assert "Neither is fused" in lab.text('section[aria-label="speed-up"]')
    assert data(lab) == finding


def test_a_timeline_is_zoomed_and_walked_by_keys(lab: Tab, timeline: Kept) -> None:
    identity, finding = timeline
    lab.open(f"/lab/timeline?finding={identity}", ".drawing svg")
    drawing = lab.page.locator(".drawing")

    def shown() -> tuple[float, float]:
        return float(lab.value(".drawing", "data-from")), float(lab.value(".drawing", "data-to"))

    whole = shown()
    assert whole == (0, pytest.approx(max(one["profiled_seconds"] for one in finding["tracks"]) * 1e6))
    drawing.focus()
    drawing.press("+")
    zoomed = shown()
    assert zoomed[1] - zoomed[0] == pytest.approx(whole[1] / 2)
    drawing.press("ArrowRight")
    assert shown()[0] > zoomed[0]
    drawing.press("Home")
    assert shown() == whole
    for place in range(3):
        drawing.press("n")
        assert lab.text(".picked").startswith(finding["tracks"][0]["blocks"][place]["name"])
    drawing.press("p")
    assert lab.text(".picked").startswith(finding["tracks"][0]["blocks"][1]["name"])
    assert lab.page.locator(".block.chosen").count() == 1


def test_dragging_over_a_stretch_zooms_into_it_and_a_press_picks_a_block(lab: Tab, timeline: Kept) -> None:
    identity, finding = timeline
    lab.open(f"/lab/timeline?finding={identity}", ".drawing svg")
    lab.page.locator(".drawing").scroll_into_view_if_needed()
    box = lab.page.locator(".drawing svg").bounding_box()
    assert box is not None
    mark = lab.page.locator(".block.mark").first.bounding_box()
    assert mark is not None
    lab.page.mouse.click(mark["x"] + 10, mark["y"] + 5)
    assert lab.text(".picked").startswith(finding["tracks"][0]["blocks"][0]["name"])
    lab.page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 4)
    lab.page.mouse.down()
    lab.page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 4)
    lab.page.mouse.up()
    end = max(one["profiled_seconds"] for one in finding["tracks"]) * 1e6
    assert float(lab.value(".drawing", "data-from")) == pytest.approx(end * 0.25, rel=0.02)
    assert float(lab.value(".drawing", "data-to")) == pytest.approx(end * 0.5, rel=0.02)


def test_a_tape_shows_the_findings_operators_nodes_and_bytes(lab: Tab, tape: Kept) -> None:
    identity, finding = tape
    lab.open(f"/lab/tape?finding={identity}", ".tape svg")
    assert rows(lab, "Forward, in order") == len(finding["forward"])
    assert rows(lab, "Backward, in the order") == len(finding["backward"])
    for place, node in enumerate(finding["backward"]):
        cells = row(lab, "Backward, in the order", place)
        assert cells["name"] == node["name"]
        assert near(cells["bytes"], sum(one["tensor_bytes"] for one in node["saved"]))
    saved = sum(len(node["saved"]) for node in finding["backward"])
    assert lab.page.locator(".tape .saved").count() == saved == finding["held"]["tensors"]
    assert near(lab.text('[data-figure="saved"]'), finding["held"]["storage_bytes"])
    assert near(lab.text('[data-figure="own"]'), finding["held"]["own_bytes"])
    assert data(lab) == finding


def test_with_grad_mode_off_the_tape_on_the_page_is_empty(lab: Tab, tape: Kept) -> None:
    identity, finding = tape
    lab.open(f"/lab/tape?finding={identity}", ".tape svg")
    for place, grad in enumerate(("no_grad", "inference_mode")):
        choice = lab.page.get_by_role("group", name="The same computation with")
        choice.get_by_role("radio", name=grad, exact=True).check(force=True)
        lab.page.wait_for_selector('.tape svg[data-nodes="0"]')
        assert lab.text('[data-figure="nodes"]').startswith("0\n")
        assert quantity(lab.text('[data-figure="saved"]')) == 0
        assert rows(lab, "Forward, in order") == len(finding["untaped"][place]["forward"]) > 0
        assert lab.page.get_by_role("region", name="Backward, in the order").count() == 0
        assert f"grad={grad}" in lab.page.url


def test_the_question_of_the_tape_is_answered_by_its_own_numbers(lab: Tab, tape: Kept) -> None:
    identity, finding = tape
    lab.open(f"/lab/tape?finding={identity}", ".question")

    def own(node: Finding) -> int:
        return sum(one["tensor_bytes"] for one in node["saved"] if one["kind"] == "intermediate")

    most = max(finding["backward"], key=own)
    said = the_answer(lab)
    assert said.startswith(f"{most['name']} (node {most['index']})")
    assert near(said, own(most))
    assert said.endswith("kept 0 bytes in 0 tensors.")


def test_a_budget_starts_at_the_measured_values_and_says_what_the_study_says(lab: Tab, budget: Kept) -> None:
    identity, finding = budget
    lab.open(f"/lab/budget?finding={identity}", ".whatif")
    own = finding["budget"]
    assert lab.value('[aria-label="Verdict"]', "data-bound") == own["bound"]
    assert float(lab.value('[aria-label="Verdict"]', "data-index")) == pytest.approx(own["device_bound_index"])
    point = finding["points"][0]
    bought = [float(one) for one in lab.page.locator("[data-speedup]").evaluate_all("all => all.map((each) => each.dataset.speedup)")]  # fmt: skip
    gain = finding["gains"][0]
    assert bought == [
        pytest.approx(point["without_dispatch_speedup"]),
        pytest.approx(
            speedup_with(
                gain["dispatch_ratio"]["value"],
                gain["kernel_ratio"]["value"],
                own["dispatch_microseconds"],
                own["kernel_microseconds"]["value"],
                "cpu",
            )
        ),
    ]
    cells = row(lab, "Per decode step on cpu")
    assert near(cells["step"], point["step"]["value"])
    assert near(cells["dispatch"], point["dispatch_seconds"]["value"])
    assert data(lab) == finding


def test_a_slider_of_the_budget_moves_by_keys_and_the_address_keeps_it(lab: Tab, budget: Kept) -> None:
    identity, finding = budget
    lab.open(f"/lab/budget?finding={identity}", ".whatif")
    own = finding["budget"]
    slider = lab.page.get_by_role("slider", name="Operators per step")
    slider.focus()
    for _ in range(4):
        slider.press("ArrowRight")
    doubled = 2 * own["ops_per_step"]["value"]
    assert slider.get_attribute("aria-valuetext") == str(doubled)
    dispatch, kernel = 2 * own["dispatch_microseconds"], own["kernel_microseconds"]["value"]
    index = float(lab.value('[aria-label="Verdict"]', "data-index"))
    assert index == pytest.approx(kernel / (kernel + dispatch))
    assert "operators=4" in lab.page.url
    lab.open(lab.page.url.removeprefix(lab.url), ".whatif")
    assert float(lab.value('[aria-label="Verdict"]', "data-index")) == pytest.approx(index)
    lab.page.get_by_role("button", name="Back to this machine's values").click()
    assert float(lab.value('[aria-label="Verdict"]', "data-index")) == pytest.approx(own["device_bound_index"])


def test_a_step_is_listed_with_its_keys_and_its_copies_are_marked(lab: Tab, step: Kept) -> None:
    identity, finding = step
    lab.open(f"/lab/dispatcher?step={identity}", "td")
    caption = "The step's calls in order"
    assert rows(lab, caption) == len(finding["operators"])
    for place in (0, len(finding["operators"]) // 2, len(finding["operators"]) - 1):
        operator = finding["operators"][place]
        cells = row(lab, caption, place)
        assert cells["name"].partition(".")[0] == operator["name"].removeprefix("aten::")
        assert cells["keys"].split() == operator["keys"]
        assert near(cells["host"] + " µs", operator["host_seconds"])
        assert near(cells["sum"] + " µs", operator["cumulative_seconds"])
    lab.page.get_by_role("radio", name=f"copies ({len({one['operator'] for one in finding['copies']})})").check(force=True)  # fmt: skip
    marked = {one["operator"] for one in finding["copies"]}
    assert rows(lab, caption) == len(marked) > 0
    assert lab.page.locator(".mark.copy").count() == len(finding["copies"])
    assert f"{len(finding['syncs'])}\n" in lab.text('[aria-label="sync points"]')
    assert data(lab) == finding


def test_a_study_runs_from_the_keyboard_with_progress_and_its_finding_has_an_address(lab: Tab, http: Client) -> None:
    lab.open("/lab/tape?expression=exp", ".study")
    assert "No tape has been recorded yet" in lab.text(".empty")
    button = lab.page.get_by_role("button", name="Record the tape")
    button.focus()
    button.press("Enter")
    lab.page.wait_for_selector(".tape svg", timeout=100_000)
    identity = lab.value("[data-id]", "data-id")
    assert f"finding={identity}" in lab.page.url
    assert data(lab) == http.get(f"/v1/studies/{identity}").json()
    assert rows(lab, "Forward, in order") == 1


def test_a_probe_runs_and_its_numbers_are_the_answers(lab: Tab) -> None:
    lab.open("/lab/probes?probe=allocator-churn", ".study")
    with lab.page.expect_response("**/v1/probes/allocator-churn", timeout=100_000) as answered:
        lab.page.get_by_role("button", name="Run allocator-churn").press("Enter")
    found = answered.value.json()
    lab.page.wait_for_selector(".probe")
    for side in ("without", "with"):
        assert near(lab.text(f'[data-side="{side}"] .interval'), found[side]["median_seconds"])
    before, after = (f"{found['counter'][end]:,}" for end in ("before", "after"))
    assert lab.text(".counter").endswith(f": {before} without, {after} with")
    assert found["blame"] in lab.text(".probe")
    assert found["blame"] in the_answer(lab)
    assert data(lab) == found


def test_the_probes_to_choose_are_those_that_the_service_lists(lab: Tab, http: Client) -> None:
    lab.open("/lab/probes", ".study")
    names = lab.page.locator(".choice .options label").all_inner_texts()
    assert names == [probe["name"] for probe in http.get("/v1/probes").json()["probes"]]
