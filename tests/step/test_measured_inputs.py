"""What a measured step is called with, whatever a job has left in the buffers."""

from __future__ import annotations

import pytest
import torch

from models.opening import open_model
from service.records import Phase
from service.step.buffers import allocate, measured_arguments, set_positions


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_indexes_that_a_job_left_between_two_chunks_do_not_reach_a_shorter_one(phase: Phase) -> None:
    model = open_model("tiny", 1, torch.device("cpu"), torch.float32, torch.float32, None, 64)
    own = allocate(model, [1], 64)[1]
    own.last.fill_(own.chunk_length - 1)
    set_positions(own, phase)
    tokens, _, last, _ = measured_arguments(own, phase)
    assert int(last.max()) < tokens.shape[1]
