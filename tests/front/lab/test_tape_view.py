"""Tape: operators, nodes and bytes are the finding's; with grad mode off there is nothing on it."""

from __future__ import annotations

import pytest

from tests.front.lab.study_pages import Finding, Kept, data, near, quantity, real, row, rows, the_answer
from tests.support.browser import Tab

pytestmark = pytest.mark.browser


@pytest.fixture
def tape(lab_url: str) -> Kept:
    return real(lab_url, "tape")


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
    drawn = lab.page.locator(".tape .box.node").all_text_contents()
    assert all(any(f".grad of {leaf['name']}" in text for text in drawn) for leaf in finding["leaves"])
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
