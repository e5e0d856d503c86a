"""Parity of what modules return: any tree, floats by dtype, all else exactly; and how a tree is answered."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from service.step import module_step
from service.step.module_parity import OUTPUT, Tolerances, compare_trees, relative_tolerance
from service.step.module_step import as_json, detached, leaves

F32 = Tolerances(frozenset({torch.float32}), 4, None)


@dataclass
class Pair:
    left: Tensor
    right: Any


def compared(expected: object, found: object, tolerances: Tolerances = F32) -> tuple[bool, str | None]:
    verdict, wrong = compare_trees(list(leaves(expected, OUTPUT)), list(leaves(found, OUTPUT)), tolerances)
    assert verdict.passed == (wrong is None)
    return verdict.passed, wrong


ONE = torch.tensor([1.0, -200.0, 3.0])


def test_the_tolerance_follows_the_largest_magnitude_of_each_tensor_however_small() -> None:
    assert compared(ONE, ONE + 1.9e-3)[0]
    assert not compared(ONE, ONE + 2.1e-3)[0]
    small = ONE * 1e-6
    assert compared(small, small + 1.9e-9)[0]
    assert compared((ONE, small), (ONE, small + 1e-6)) == (
        False,
        "output[1] differs by 1.0e-06, 2.0e-09 allowed",
    )


@pytest.mark.parametrize("fill", [-1e4, -1e9, torch.finfo(torch.float32).min])
def test_what_both_are_masked_with_does_not_widen_the_tolerance(fill: float) -> None:
    mask = torch.arange(64) % 3 == 0
    one, other = (torch.randn(64).masked_fill(mask, fill) for _ in range(2))
    rounded = one + (1e-6 * torch.randn(64)).masked_fill(mask, 0.0)
    assert compared(one, rounded)[0]
    assert compared(one, one.clone())[0]
    assert not compared(one, other)[0]
    assert not compared(one, one.masked_fill(mask, 0.0))[0]


def test_what_differs_most_beside_its_own_tolerance_is_reported() -> None:
    small = ONE * 1e-6
    verdict, _ = compare_trees(
        list(leaves((ONE, small), OUTPUT)), list(leaves((ONE + 1e-3, small + 1.9e-9), OUTPUT)), F32
    )
    assert verdict.passed
    assert verdict.max_abs_logit_difference == pytest.approx(1.9e-9, rel=0.01)
    assert verdict.tolerance == pytest.approx(2e-9)
    assert verdict.positions == 6


@pytest.mark.parametrize("late", [False, True])
def test_a_difference_from_all_zeros_never_passes(late: bool) -> None:
    zeros = torch.zeros(2)
    expected, found = [zeros, ONE], [zeros + 1e-9, ONE]
    assert not compared(expected[:: -1 if late else 1], found[:: -1 if late else 1])[0]
    assert compared(zeros, zeros.clone())[0]


@pytest.mark.parametrize(
    ("expected", "found", "passed"),
    [
        ([math.nan, 1.0], [math.nan, 1.0], True),
        ([math.nan, 1.0], [0.0, 1.0], False),
        ([0.0, 1.0], [math.nan, 1.0], False),
        ([math.inf, 1.0], [math.inf, 1.0], True),
        ([math.inf, 1.0], [-math.inf, 1.0], False),
        ([math.inf, 1.0], [1e30, 1.0], False),
        ([1.0, 1.0], [math.inf, 1.0], False),
        ([math.inf, 1.0], [math.inf, 1.1], False),
        ([], [], True),
    ],
)
def test_nan_and_infinity_are_equal_to_themselves_alone(
    expected: list[float], found: list[float], passed: bool
) -> None:
    assert compared(torch.tensor(expected), torch.tensor(found))[0] == passed


@pytest.mark.parametrize(
    ("expected", "found", "wrong"),
    [
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "1 of 2 values of output differ"),
        (torch.tensor([True, True]), torch.tensor([True, False]), "1 of 2 values of output differ"),
        ((ONE, 3), (ONE, 4), r"output[1] is 4 in place of 3"),
        ((ONE, None), (ONE, 0), r"output[1] is 0 in place of None"),
        ((ONE, 1), (ONE, True), r"output[1] is True in place of 1"),
        ({"a": ONE}, {"b": ONE}, "it returns another structure than eager, first at output['a']"),
        ((ONE, ONE), (ONE,), "it returns another structure than eager, first at output"),
        (Pair(ONE, 1), Pair(ONE, 2), "output.right is 2 in place of 1"),
        (ONE, ONE[:2], "output is torch.float32 [2] in place of torch.float32 [3]"),
        (ONE, ONE.double(), "output is torch.float64 [3] in place of torch.float32 [3]"),
        ({"a": [ONE]}, {"a": [ONE + 1]}, "output['a'][0] differs by 1.0e+00"),
    ],
    ids=str,
)
def test_all_else_is_compared_exactly_and_named(expected: object, found: object, wrong: str) -> None:
    assert compared(expected, expected) == (True, None)
    passed, said = compared(expected, found)
    assert not passed
    assert said is not None
    assert said.startswith(wrong)


def test_complex_and_sparse_tensors_are_compared_by_their_values() -> None:
    turned = torch.complex(ONE, ONE)
    assert compared(turned, turned * (1 + 1e-7))[0]
    assert not compared(turned, turned * (1 + 1e-3))[0]
    sparse = torch.diag(ONE).to_sparse()
    assert compared(sparse, sparse.clone())[0]
    assert not compared(sparse, sparse * 1.01)[0]


def test_a_tolerance_is_that_of_the_coarsest_dtype_on_the_way_or_what_the_author_gives() -> None:
    assert relative_tolerance(torch.float64, 9) == 1e-12
    assert relative_tolerance(torch.float32, 9) == relative_tolerance(torch.complex64, 9) == 1e-5
    assert relative_tolerance(torch.bfloat16, 9) == 3 * 2**-8
    assert relative_tolerance(torch.float16, 0) == 2**-11
    low = Tolerances(frozenset({torch.bfloat16}), 16, None)
    assert low.relative(ONE) == 4 * 2**-8  # the output itself is float32
    assert F32.relative(ONE.double()) == 1e-5
    assert Tolerances(frozenset({torch.bfloat16}), 16, 1e-3).relative(ONE) == 1e-3


def test_a_tree_is_freed_of_its_tape_whatever_it_is_made_of() -> None:
    made = ONE.clone().requires_grad_() * 2
    tree = {"a": (made, [made]), "b": Pair(made, (1, None)), "c": OrderedDict(d=made)}
    free = detached(tree)
    found = dict(leaves(free, OUTPUT))
    assert [type(leaf) for leaf in found.values()] == [*[Tensor] * 3, int, type(None), Tensor]
    assert not any(leaf.requires_grad for leaf in found.values() if isinstance(leaf, Tensor))
    assert found.keys() == dict(leaves(tree, OUTPUT)).keys()
    assert made.requires_grad
    assert tree["b"].left is made


def test_a_tree_of_plain_values_is_freed_without_the_slow_walk_of_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(module_step, "tree_map_only")
    tree = [[1, 2.0, None], {"a": "text", "b": True}, Pair(1, (2, b"c"))]
    assert detached(tree) == tree


def test_a_tree_is_answered_with_the_dtype_and_shape_of_each_tensor() -> None:
    tree = {
        "pair": Pair(torch.tensor([[1.5, math.nan]], dtype=torch.bfloat16), (1, None, "text")),
        "turned": torch.tensor([1 + 2j]),
        "sparse": torch.diag(torch.tensor([1.0, 2.0])).to_sparse(),
        "flag": torch.tensor(True),
    }
    assert json.loads(as_json(tree)) == {
        "pair": {
            "left": {"dtype": "bfloat16", "shape": [1, 2], "data": [[1.5, None]]},
            "right": [1, None, "text"],
        },
        "turned": {"dtype": "complex64", "shape": [1], "data": [[1.0, 2.0]]},
        "sparse": {"dtype": "float32", "shape": [2, 2], "data": [[1.0, 0.0], [0.0, 2.0]]},
        "flag": {"dtype": "bool", "shape": [], "data": True},
    }
