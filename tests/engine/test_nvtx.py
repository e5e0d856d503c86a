"""NVTX ranges are asked for by a setting and, on a machine without CUDA, said to be absent at the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.engine.inbox import local_job
from tests.engine.serving import PROMPT, serve


@pytest.mark.usefixtures("restored_globals")
@pytest.mark.parametrize("asked_for", [True, False])
def test_an_engine_without_cuda_says_that_there_are_no_ranges_where_they_were_asked_for_and_serves(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], asked_for: bool
) -> None:
    inbox = serve(
        tmp_path, [local_job("a", "eager", [PROMPT], 2)], modes=["eager"], batch_sizes=[1], nvtx=asked_for
    )
    assert inbox.outcomes[0].kind == "ok"
    assert ("LAUNCHBOUND_NVTX" in capfd.readouterr().err) == asked_for
