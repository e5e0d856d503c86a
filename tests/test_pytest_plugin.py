"""The fixture `inference_budget` in tests of a user's, run by a pytest of their own."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.processes import without

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, breaks=False, counts=False, drops=False):
        super().__init__()
        self.layer, self.breaks, self.counts, self.drops = nn.Linear(4, 4), breaks, counts, drops
        self.calls = 0

    def forward(self, x, scale=1.0):
        y = self.layer(x) * scale
        if self.breaks:
            torch._dynamo.graph_break()
        if self.counts:
            self.calls += 1
            y = y + self.calls
        if self.drops and torch.compiler.is_compiling():
            y = y + 1
        return {"y": y, "most": (y.argmax(-1), y * float("nan"))}
"""

TESTS = """
import sys
from dataclasses import dataclass
import pytest
import torch
from torch import nn
from models.net import Net

X = torch.ones(2, 4)

def fails(call, said):
    with pytest.raises(AssertionError) as raised:
        call()
    message = str(raised.value)
    assert said in message and "\\n" not in message, message
    return message

def test_within(inference_budget):
    counts = inference_budget(Net().eval(), [(X,), {"x": X, "scale": 2.0}], recompiles=2)
    assert (counts.graph_breaks, counts.host_instructions) == (0, None)
    assert counts.recompiles > 0

def test_a_factorys_inputs(inference_budget):
    made = lambda batch, seed: torch.randn(batch, 4)
    assert inference_budget(Net().eval(), made, parity=False) == (0, 0, None)

def test_breaks(inference_budget):
    net = Net(breaks=True).eval()
    message = fails(lambda: inference_budget(net, X, parity=False), "1 graph break, 0 allowed: ")
    assert "net.py:14 (" in message
    assert inference_budget(net, X, graph_breaks=1, parity=False).graph_breaks == 1

def test_a_function_that_is_not_compiled_is_a_break(inference_budget):
    net = nn.LSTM(4, 4).eval()
    class Skipped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = net
        def forward(self, x):
            return self.inner(x)[0]
    fails(lambda: inference_budget(Skipped().eval(), X, parity=False), "LSTM")

def test_recompiles(inference_budget):
    net = Net(counts=True).eval()
    message = fails(lambda: inference_budget(net, X, parity=False), "1 recompile, 0 allowed: ")
    assert "net.py:11 (" in message
    shapes = [X, torch.ones(3, 4)]
    net = Net().eval()
    fails(lambda: inference_budget(net, shapes, parity=False), "size mismatch at index 0. expected 2")

def test_parity(inference_budget):
    fails(lambda: inference_budget(Net(drops=True).eval(), X), "the result['y']: ")
    inference_budget(Net(drops=True).eval(), X, parity=False)

def test_training(inference_budget):
    fails(lambda: inference_budget(Net(), X), "training mode")

@dataclass(slots=True)
class Scored:
    y: torch.Tensor
    parts: tuple

class Sum(nn.Module):
    def forward(self, x, weight, tree, *, scale=1.0):
        parts = x + tree["both"][0], tree["both"][1][0] * 2
        return Scored(x @ weight * scale, parts)

def three(batch, seed):
    return torch.randn(batch, 4), torch.randn(4, 4), {"both": [torch.ones(4), (torch.ones(batch),)]}

def named(batch, seed):
    return {**dict(zip(("x", "weight", "tree"), three(batch, seed))), "scale": 2.0}

@pytest.mark.parametrize("inputs", [
    three, named, lambda batch, seed: list(three(batch, seed)), three(2, 0), [list(three(2, 0)), three(2, 1)],
])
def test_three_arguments_of_which_one_is_a_tree(inference_budget, inputs):
    assert inference_budget(Sum().eval(), inputs) == (0, 0, None)

def test_inputs_that_cannot_be_called_or_are_none(inference_budget):
    sized = lambda batch, seed, size: torch.ones(batch, size)
    fails(lambda: inference_budget(Net().eval(), sized), "'size'): give what it returns")
    fails(lambda: inference_budget(Net().eval(), []), "give the arguments of one call at least")

class Distribution(nn.Module):
    def forward(self, x):
        return {"found": torch.distributions.Normal(x, 1.0)}

class Other(nn.Module):
    def __init__(self, whole, compiled):
        super().__init__()
        self.whole, self.compiled = whole, compiled
    def forward(self, x):
        return self.compiled(x) if torch.compiler.is_compiling() else self.whole(x)

def test_results_that_are_unlike_or_cannot_be_compared(inference_budget):
    net = Other(lambda x: [x], lambda x: [x, x]).eval()
    fails(lambda: inference_budget(net, X), "the result has [0], [1] in place of [0]")
    net = Other(lambda x: {"a": x}, lambda x: {"b": x}).eval()
    fails(lambda: inference_budget(net, X), "the result has ['b'] in place of ['a']")
    said = "the result['found'] of type Normal cannot be compared: return tensors, or give parity=False"
    fails(lambda: inference_budget(Distribution().eval(), X, graph_breaks=9), said)
"""

INSTRUCTIONS = """
import sys
import pytest
import torch
import models.net, service

def test_host_instructions(inference_budget):
    torch.set_num_threads(1)
    net, x = models.net.Net().eval(), torch.ones(2, 4)
    counts = inference_budget(net, x, host_instructions=10**9, parity=False)
    print("counted", counts.host_instructions)
    assert sys.modules["service"] is service and service.THEIRS
    assert sys.modules["models.net"] is models.net
    if counts.host_instructions is not None:
        assert counts.host_instructions > 1000
        with pytest.raises(AssertionError, match="instructions on the host, 10 are allowed"):
            inference_budget(net, x, host_instructions=10, parity=False)
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with packages that are called as ours are."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for name, content in {
        "models/__init__": "",
        "models/net": NET,
        "service/__init__": "THEIRS = True",
    }.items():
        file = pytester.path / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
    return pytester


def run(project: pytest.Pytester, tests: str, *options: str) -> pytest.RunResult:
    project.makepyfile(tests)
    code = f"import sys, pytest; sys.path.append({str(ROOT)!r}); raise SystemExit(pytest.main())"
    return project.run(
        sys.executable, "-c", code, "-p", "launchbound_pytest", "-p", "no:cacheprovider", *options
    )


@pytest.mark.slow
def test_a_budget_is_kept_or_broken_in_one_line(project: pytest.Pytester) -> None:
    run(project, TESTS).assert_outcomes(passed=14)


@pytest.mark.slow
def test_host_instructions_are_counted_or_it_is_said_that_they_are_not(project: pytest.Pytester) -> None:
    result = run(project, INSTRUCTIONS, "-rP")
    result.assert_outcomes(passed=1, warnings=int("were not counted" in result.stdout.str()))
    if "were not counted" in result.stdout.str():
        without("no instructions can be counted here")
    assert re.search(r"counted \d+", result.stdout.str())


def test_pytest_loads_it_and_it_loads_nothing() -> None:
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    # By the module's own name, so that `-p` beside it does not register it twice.
    assert entries == {"launchbound_pytest": "launchbound_pytest"}
    code = "import launchbound_pytest, sys; print({'torch', 'models', 'service'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
