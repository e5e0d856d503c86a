"""What `launchbound docs` writes: an interval decides each claim, and a page is that of its findings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from launchbound import app
from service.anatomy import docs
from service.anatomy.docs import (
    BEGIN,
    CLAIMS,
    EXAMPLES,
    Findings,
    Machine,
    Measured,
    Runs,
    about,
    shown,
    verdict_of,
)
from service.study_names import NOT_ON_CPU, PROBES
from tests.support.small_models import quiet, small_bench

MACHINE = Machine(name="EPYC", device="cpu", cores=2, threads=1, torch="2", dtype="float32", model="tiny")
FINDINGS = {
    "anatomy": Findings(
        machine=MACHINE,
        measured="2026-11-26",
        rounds=25,
        printed={one.options: f"printed by {one.options}" for one in EXAMPLES},
        lessons={claim.about: [Measured("x", 1.5, 1.2, 1.8)] for claim in CLAIMS[:-1]}
        | {CLAIMS[-1].about: "needs a GPU"},
    ),
    "probes": Findings(
        machine=MACHINE, measured="2026-11-26", rounds=41, printed={name: f"shown {name}" for name in PROBES}
    ),
}
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


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with both pages, and findings of both in a folder of its benchmarks."""
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    kept = tmp_path / "benchmarks" / "20261126-epyc2-docs"
    kept.mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    for page, findings in FINDINGS.items():
        (kept / f"{page}.json").write_bytes(msgspec.json.encode(findings))
        (tmp_path / "docs" / f"{page}.md").write_text(f"# by hand\n\n{BEGIN}\n\nolder\n")
    return tmp_path


def test_a_page_is_what_was_written_by_hand_and_its_findings(root: Path) -> None:
    kept = root / "benchmarks" / "20261126-epyc2-docs"
    ended = CliRunner().invoke(app, ["docs", "--from", str(kept)])
    assert ended.exit_code == 0, ended.output
    anatomy, probes = ((root / "docs" / f"{page}.md").read_text() for page in FINDINGS)
    for page, text in (("anatomy", anatomy), ("probes", probes)):
        assert text.startswith(f"# by hand\n\n{BEGIN}\n\nMeasured on 2026-11-26: EPYC")
        assert f"](../benchmarks/{kept.name}/{page}.json)" in text
        assert "older" not in text
        assert all(printed in text for printed in FINDINGS[page].printed.values())
    assert all(f"| {claim.about} | {claim.quoted} | x 1.5 (1.2 to 1.8)" in anatomy for claim in CLAIMS[:-1])
    assert f"| {CLAIMS[-1].about} | costs a wait | – | cannot be measured here: needs a GPU |" in anatomy


def test_findings_that_cannot_be_read_are_refused_with_the_remedy(root: Path) -> None:
    for text in ('{"rounds": 25}', None):
        if text is not None:
            (root / "anatomy.json").write_text(text)
        ended = CliRunner().invoke(app, ["docs", "anatomy", "--from", str(root if text else root / "none")])
        assert ended.exit_code == 2
        assert "run `launchbound docs anatomy`" in " ".join(ended.output.split())


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
