"""Operator calls are compared with a list: what is not on it is refused, and nothing is evaluated."""

from __future__ import annotations

import pytest

from service.study_names import LONGEST_CALL, OPERATOR_CALLS, operator_named


@pytest.mark.parametrize(("name", "call"), OPERATOR_CALLS.items())
def test_every_known_call_is_found_whatever_its_spaces(name: str, call: str) -> None:
    assert len(call) < LONGEST_CALL
    assert operator_named(call) == name
    assert operator_named(call.replace(" ", "")) == name
    assert operator_named(f"  {call.replace('(', ' ( ')} ") == name


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("torch.add(a, b)", "add"),
        ("torch.softmax(scores, -1)", "softmax"),
        ("F.layer_norm(h, size, w, b)", "layer_norm"),
    ],
)
def test_arguments_may_have_other_names(call: str, name: str) -> None:
    assert operator_named(call) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "torch.add",
        "torch.add(a)",
        "torch.add(a, 1)",
        "torch.add(a, b); torch.mul(a, b)",
        "torch.add(a, b)\nimport os",
        "torch.softmax(a, 1)",
        "other.add(a, b)",
        "__import__('os').system(a, b)",
        "torch.add(a, b)" + " " * LONGEST_CALL,
    ],
)
def test_what_is_not_on_the_list_is_refused_with_the_list(text: str) -> None:
    with pytest.raises(ValueError, match=r"try one of torch\.add"):
        operator_named(text)
