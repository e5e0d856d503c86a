"""Ten kinds of module load, compute the same again and in a compiled mode; two of them break the graph."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.exc import Unsupported, UserError

from models.workload import UserModule, load_module

ROOT = Path(__file__).parents[2]
MODULES = {
    **{
        name: f"{ROOT}/examples/{name}.py:build"
        for name in ("recommender", "vision_transformer", "early_exit")
    },
    **{
        f"dense.{name}": f"tests.support.user_modules.dense:build_{name}" for name in ("mlp", "lstm", "graph")
    },
    **{f"vision.{name}": f"tests.support.user_modules.vision:build_{name}" for name in ("resnet", "unet")},
    **{f"text.{name}": f"tests.support.user_modules.text:build_{name}" for name in ("bert", "t5")},
}
BREAKS = {"early_exit": "early_exit.py", "dense.lstm": "LSTM"}
"""What Dynamo says of the modules of which it makes more than one graph."""


@pytest.fixture(params=MODULES)
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[UserModule]:
    monkeypatch.chdir(ROOT)
    torch.compiler.reset()
    yield load_module(MODULES[request.param], torch.device("cpu"), torch.float32)
    torch.compiler.reset()


def called(step: Any, loaded: UserModule, batch: int = 3) -> dict[str, Any]:
    args, kwargs = loaded.inputs(batch, 1)
    found = step(*args, **kwargs)
    return {"found": vars(found) if hasattr(found, "logits") else found}


def assert_equal(found: object, expected: object, **tolerance: float) -> None:
    torch.testing.assert_close(found, expected, check_stride=False, **tolerance)


def test_a_module_computes_the_same_again_and_in_inference_mode(module: UserModule) -> None:
    eager = called(module.module, module)
    assert_equal(called(module.module, module), eager, rtol=0.0, atol=0.0)
    with torch.inference_mode():
        assert_equal(called(module.module, module), eager, rtol=1e-5, atol=1e-5)


@pytest.mark.compiles
def test_a_compiled_module_computes_the_same_or_breaks(
    module: UserModule, request: pytest.FixtureRequest, common_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(common_cache))
    step = torch.compile(module.module, fullgraph=True, dynamic=False)
    name = request.node.callspec.params["module"]
    with torch.inference_mode():
        if name in BREAKS:
            with pytest.raises((Unsupported, UserError), match=BREAKS[name]):
                called(step, module)
            step = torch.compile(module.module, dynamic=False)
        assert_equal(called(step, module), called(module.module, module), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_runs_in_bfloat16(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    loaded = load_module(MODULES[name], torch.device("cpu"), torch.bfloat16)
    with torch.inference_mode():
        assert called(loaded.module, loaded, 2)
