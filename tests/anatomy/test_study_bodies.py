"""The bodies of studies over HTTP fit what runs them: the same fields, the same defaults, tighter bounds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from service.anatomy import page, studies
from service.anatomy.page import BEGIN, EXAMPLES, Example, missing, section
from service.anatomy.tape.computations import OF_THE_MODEL, TAPE_EXPRESSIONS
from service.front.schemas import STUDY_BODIES
from tests.anatomy.test_operator_call import EXAMPLE, OperatorCallFinding

NEEDED: dict[str, dict[str, Any]] = {"operators": {"mode": "eager"}}


def test_every_study_is_served() -> None:
    assert STUDY_BODIES.keys() | {"probes"} == studies.STUDIES.keys()


@pytest.mark.parametrize("name", STUDY_BODIES)
def test_a_bodys_defaults_are_those_of_its_study(name: str) -> None:
    body = STUDY_BODIES[name].model_validate(NEEDED.get(name, {}))
    arguments = body.arguments(body.given)
    own = studies.find(name).arguments
    decoded = msgspec.json.decode(msgspec.json.encode(arguments), type=own)
    differing = {key for key in own.__struct_fields__ if getattr(decoded, key) != getattr(own(), key)}
    assert differing <= {"page"}


@pytest.mark.parametrize("name", STUDY_BODIES)
def test_a_body_has_every_argument_of_its_study_but_those_of_a_folder(name: str) -> None:
    own = set(studies.find(name).arguments.__struct_fields__)
    assert set(STUDY_BODIES[name].model_fields) - {"snapshot"} == own - {"out", "page"}


def test_the_expressions_of_a_tape_are_listed_in_its_schema() -> None:
    schema = STUDY_BODIES["tape"].model_json_schema()
    assert schema["properties"]["expression"]["enum"] == [*OF_THE_MODEL, *TAPE_EXPRESSIONS]


@pytest.mark.parametrize("name", STUDY_BODIES)
def test_every_number_of_a_body_has_a_bound_above(name: str) -> None:
    """But batch sizes, which the instance's largest bucket bounds."""

    def unbounded(node: Any, key: str) -> list[str]:
        if isinstance(node, list):
            return [found for item in node for found in unbounded(item, key)]
        if not isinstance(node, dict):
            return []
        if node.get("type") in ("integer", "number"):
            return [] if "maximum" in node else [key]
        if node.get("type") == "array" and "maxItems" not in node:
            return [key]
        return [found for own, value in node.items() for found in unbounded(value, f"{key}.{own}")]

    properties = STUDY_BODIES[name].model_json_schema()["properties"]
    for key, schema in properties.items():
        assert key in ("batch_size", "batch_sizes") or unbounded(schema, key) == []


def test_the_committed_page_shows_every_study(capsys: pytest.CaptureFixture[str]) -> None:
    assert page.main(["--check"]) == 0, capsys.readouterr().err


def test_a_page_without_a_study_is_refused_with_the_command_that_mends_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    written = page.PAGE.read_text()
    monkeypatch.setattr(page, "PAGE", tmp_path / "anatomy.md")
    page.PAGE.write_text(written.replace("### `tape`\n", "### tape\n"))
    assert page.main(["--check"]) == 1
    assert "`tape`: run with --write" in capsys.readouterr().err


def test_a_section_is_the_command_the_body_and_what_the_study_prints() -> None:
    finding = msgspec.json.decode(EXAMPLE.read_bytes(), type=OperatorCallFinding)
    text = section(Example("operator", "--op x", {"size": 4}), finding)
    assert text.startswith("### `operator`\n\n`launchbound anatomy --op x`, or `POST /v1/studies/operator`")
    assert '`{"size": 4}`' in text
    assert "AutogradCPU" in text
    made = f"{BEGIN}\n{text}"
    assert "`operator`" not in missing(made)
    assert set(missing(made)) == {example.name for example in EXAMPLES} - {"`operator`"}


def test_a_section_may_begin_further_down() -> None:
    finding = msgspec.json.decode(EXAMPLE.read_bytes(), type=OperatorCallFinding)
    whole, later = (
        section(Example("operator", "--op x", {}, title=title, begins=begins), finding)
        for title, begins in (("", ""), (", below", "dispatched on"))
    )
    first, line = (text.partition("```text\n")[2] for text in (whole, later))
    assert line.startswith("dispatched on: ")
    assert first.endswith(line)
    assert later.startswith("### `operator`, below\n")
    with pytest.raises(ValueError, match="no line that begins with 'graphs'"):
        section(Example("operator", "--op x", {}, begins="graphs"), finding)
