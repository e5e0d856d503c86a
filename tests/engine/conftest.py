"""What the engine's tests share: the process's globals."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.support.start_up import few_samples


@pytest.fixture
def restored_globals() -> Iterator[None]:
    """An engine freezes globals of its process, which here is that of all tests. It takes few samples."""
    threads = torch.get_num_threads()
    with few_samples():
        yield
    torch.compiler.set_stance("default")
    torch.set_num_threads(threads)
