"""OpenVINO GenAI: `LLMPipeline` on optimum-intel's export, from token ids to token ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import openvino_genai

from loadtests.peers.rivals.model_openvino import PROPERTIES, export
from loadtests.peers.rivals.worker import Loaded, Task, Tokens, serve


def load(task: Task) -> Loaded:
    """The pipeline with the stateful backend (SDPA), which is the one for a single batch at a time."""
    properties = {**PROPERTIES, "ATTENTION_BACKEND": "SDPA"}
    pipeline: Any = openvino_genai.LLMPipeline(str(export(task)), "CPU", **properties)

    def call(tokens: Tokens, new_tokens: int) -> Tokens:
        prompts = np.asarray(tokens, dtype=np.int64)
        config: Any = openvino_genai.GenerationConfig()
        config.max_new_tokens = new_tokens
        config.ignore_eos = True
        config.do_sample = False
        inputs = openvino_genai.TokenizedInputs(ov.Tensor(prompts), ov.Tensor(np.ones_like(prompts)))
        found: Tokens = [list(row) for row in pipeline.generate(inputs, config).tokens]
        return found

    settings = {
        "graph": "optimum-cli export openvino --weight-format fp32 (stateful)",
        "call": "LLMPipeline.generate, greedy, ignore_eos",
        "properties": {name: str(value) for name, value in properties.items()},
    }
    return Loaded(call, settings, ["openvino", "openvino-genai", "optimum-intel"])


if __name__ == "__main__":
    serve(load)
