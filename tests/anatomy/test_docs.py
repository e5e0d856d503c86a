"""What `launchbound docs` writes: an interval decides each claim, and a page is that of its findings."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.anatomy import docs
from service.anatomy.docs import (
    BEGIN,
    CLAIMS,
    EXAMPLES,
    Measured,
    Runs,
    about,
    shown,
    verdict_of,
)
from service.study_names import NOT_ON_CPU, PROBES
from tests.support.small_models import quiet, small_bench

ends = st.floats(-1e6, 1e6)


@given(ends, ends, ends, ends)
def test_a_value_agrees_only_where_its_whole_interval_lies_in_the_quoted_range(
    a: float, b: float, c: float, d: float
) -> None:
    (low, high), (quoted_low, quoted_high) = sorted((a, b)), sorted((c, d))
    ends_inside = [quoted_low <= end <= quoted_high for end in (low, high)]
    across = low < quoted_low and high > quoted_high
    expected = "agrees" if all(ends_inside) else "undecided" if any(ends_inside) or across else "disagrees"
    assert verdict_of([Measured("x", low, low, high)], quoted_low, quoted_high) == expected


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([(2, 2), (3, 3)], "agrees"),
        ([(2, 2), (30, 31)], "agrees in part"),
        ([(2, 2), (30, 31), (0, 3)], "agrees in part"),
        ([(20, 21), (30, 31)], "disagrees"),
        ([(2, 2), (0, 3)], "undecided"),
        ([(20, 21), (0, 9)], "undecided"),
        ([(6, None)], "disagrees"),
        ([(4, None)], "undecided"),
    ],
)
def test_several_values_agree_in_part_where_some_lie_outside(
    values: list[tuple[float, float | None]], verdict: str
) -> None:
    assert verdict_of([Measured("x", low, low, high) for low, high in values], 1, 5) == verdict


def test_a_value_is_shown_with_its_interval_and_what_was_counted_without() -> None:
    values = [Measured("add", 0.612, 0.6, 0.62), Measured.counted("", 2345), Measured("", 2.0, 1.5, None)]
    assert [shown(value) for value in values] == ["add 0.612 (0.6 to 0.62)", "2,345", "2 (1.5 to more)"]
    low, high = about(3.0)
    assert low < 3.0 < high


@pytest.mark.parametrize("page", docs.PAGES)
def test_a_page_is_what_was_written_by_hand_and_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    written = tmp_path / "docs" / f"{page}.md"
    written.parent.mkdir()
    written.write_text(f"# by hand\n\n{BEGIN}\n\nolder\n")
    lessons = {claim.about: [Measured("x", 1.5, 1.2, 1.8)] for claim in CLAIMS[:-1]}
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    monkeypatch.setattr(docs, "lesson", lambda _, claim: lessons.get(claim.about, "needs a GPU"))
    monkeypatch.setattr(docs, "printed", lambda run, study, arguments, *_: f"{study}: {arguments}")
    run: Any = SimpleNamespace(rounds=6)
    docs.write_page(page, ["Measured on a day", *docs.PAGES[page](run)])
    text = written.read_text()
    assert text.startswith(f"# by hand\n\n{BEGIN}\n\nMeasured on a day\n\n")
    assert "older" not in text
    if page == "probes":
        assert all(f"probes: {{'name': '{name}'" in text for name in PROBES)
    else:
        assert all(f"{one.study}: {one.arguments}" in text for one in EXAMPLES)
        assert all(f"| {claim.about} | {claim.quoted} | x 1.5 (1.2 to 1.8)" in text for claim in CLAIMS[:-1])
        assert f"| {CLAIMS[-1].about} | costs a wait | – | cannot be measured here: needs a GPU |" in text


def test_the_machine_of_a_page_is_named_without_a_folder() -> None:
    with small_bench() as bench:
        text = docs.source(bench, 25)
    assert "device cpu. 25 rounds." in text
    assert "/" not in text.partition("model ")[2]


@pytest.mark.compiles
@pytest.mark.slow
def test_every_claim_is_read_from_a_study_or_says_why_not() -> None:
    with small_bench() as bench:
        run = Runs(bench, 6, quiet)
        found: dict[str, Any] = {claim.about: docs.lesson(run, claim) for claim in CLAIMS}
        unseen = docs.printed(run, "probes", {"name": "pinned-copy", "repeats": 6})
    unread = [name for name, values in found.items() if isinstance(values, str)]
    assert unread == ["a launch", "`cudaMalloc`", "launches of a step", "a sync in the step"]
    assert found["autograd's keys in `inference_mode`"] == [Measured.counted("", 0.0)]
    assert found["autocast's key (texts disagree)"][0].value >= 1
    assert [value.what for value in found["a whole call"]] == ["matmul", "add", "layer_norm", "in a step"]
    assert unseen.startswith(f"launchbound: {NOT_ON_CPU['pinned-copy']}")
