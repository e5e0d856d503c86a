"""What the engine's tests share: the process's globals."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._dynamo import config as dynamo_config

from tests.support.start_up import few_samples


@pytest.fixture
def restored_globals() -> Iterator[None]:
    """An engine freezes globals of its process, which here is that of all tests. It takes few samples."""
    threads = torch.get_num_threads()
    limits = ("recompile_limit", "accumulated_recompile_limit")
    with few_samples(), dynamo_config.patch({name: getattr(dynamo_config, name) for name in limits}):
        yield
    torch.compiler.set_stance("default")
    torch.set_num_threads(threads)
