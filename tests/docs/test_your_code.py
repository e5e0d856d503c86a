"""The code that `docs/your-code.md` shows runs, and computes what the module computes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

PAGE = (Path(__file__).parents[2] / "docs" / "your-code.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
BLOCKS = {
    f"{title} {number}": block
    for title, text in SECTIONS.items()
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    if "cuda" not in block and "output = " in block
}


def test_every_mode_that_runs_on_a_cpu_has_its_code() -> None:
    assert [title.partition("`")[2].partition("`")[0] for title in BLOCKS] == [
        "no_grad", "compiled", "reduce-overhead", "max-autotune", "aot-inductor",
    ]  # fmt: skip


@pytest.mark.long
@pytest.mark.compiles
@pytest.mark.parametrize("title", BLOCKS)
def test_a_block_computes_what_the_module_computes(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    model = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 4)).eval()
    inputs = (torch.randn(2, 8),)
    names: dict[str, Any] = {"torch": torch, "model": model, "inputs": inputs}
    exec(compile(BLOCKS[title], "docs/your-code.md", "exec"), names)
    torch.testing.assert_close(names["output"], model(*inputs), rtol=1e-4, atol=1e-4)
