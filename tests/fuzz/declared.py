"""What the OpenAPI document declares: an answer is checked against its status, headers, type and schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

EVENTS = "text/event-stream"


class Declared:
    """One document."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document

    def statuses(self) -> set[int]:
        """Every status that some operation declares."""
        operations = (one for methods in self.document["paths"].values() for one in methods.values())
        return {int(status) for operation in operations for status in operation["responses"]}

    def check(self, method: str, template: str, status: int, headers: Mapping[str, str], body: bytes) -> Any:
        """Check one answer of an operation; returns its JSON, and None where it has another type.

        `headers` are found in any case of their letters.
        """
        answers = self.document["paths"][template][method]["responses"]
        assert str(status) in answers, f"{method} {template} declares no {status}: {body[:300]!r}"
        declared = answers[str(status)]
        for name, header in declared.get("headers", {}).items():
            assert name in headers, f"{status} without {name}"
            wants_number = header["schema"]["type"] == "integer"
            self.conforms(int(headers[name]) if wants_number else headers[name], header["schema"])
        kind = headers["Content-Type"].partition(";")[0]
        assert kind in declared["content"], f"{kind} is not declared of {status}"
        if kind != "application/json":
            return None
        value = json.loads(body)
        self.conforms(value, declared["content"][kind]["schema"])
        return value

    def conforms(self, value: object, schema: dict[str, Any]) -> None:
        """Raise ValidationError where `value` does not fit `schema`, whose references are the document's."""
        from jsonschema import Draft202012Validator  # takes a second, which every collection would cost

        Draft202012Validator({**schema, "components": self.document["components"]}).validate(value)

    def conforms_to(self, name: str, value: object) -> None:
        """The same for a named schema."""
        self.conforms(value, {"$ref": f"#/components/schemas/{name}"})


def events(body: bytes) -> list[tuple[str, Any]]:
    """The events of a whole stream, as name and data; data that is no JSON stays text."""
    assert body.endswith(b"\n\n")
    found = []
    for block in body.decode().removesuffix("\n\n").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        data = fields["data"]
        found.append((fields.get("event", "message"), data if data == "[DONE]" else json.loads(data)))
    return found
