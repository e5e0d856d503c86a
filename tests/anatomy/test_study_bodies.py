"""The bodies of studies over HTTP fit what runs them: the same fields, the same defaults, tighter bounds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from service.anatomy import studies
from service.anatomy.tape.study import OF_THE_MODEL, TAPE_EXPRESSIONS
from service.front.schemas.studies import STUDY_BODIES

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
