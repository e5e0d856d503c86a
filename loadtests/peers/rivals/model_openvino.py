"""OpenVINO GenAI's pipeline on optimum-intel's stateful export."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai

from loadtests.peers.rivals.worker import Loaded, Task, Tokens, serve
from service.parent_death import owned

PROPERTIES: dict[str, Any] = {
    "PERFORMANCE_HINT": "LATENCY",
    "INFERENCE_NUM_THREADS": 1,
    "NUM_STREAMS": "1",
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "ENABLE_HYPER_THREADING": False,
    # The driver pins the process; OpenVINO's own pinning would choose another core.
    "ENABLE_CPU_PINNING": False,
}
"""Everything in float32: by itself the plugin chooses bfloat16 where the processor has it."""


def export(task: Task) -> Path:
    """The folder with the exported model and tokenizer, made once by `optimum-cli export openvino`."""
    made = task.made / "model"
    if not (made / "openvino_model.bin").is_file():
        command = [
            sys.executable, "-m", "optimum.commands.optimum_cli", "export", "openvino", "--model",
            str(task.folder), "--task", "text-generation-with-past", "--weight-format", "fp32", str(made),
        ]  # fmt: skip
        done = subprocess.run(owned(command, signal.SIGKILL), capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the export failed: {(done.stderr or done.stdout).strip()[-400:]}")
    return made


def load(task: Task) -> Loaded:
    """`LLMPipeline` with the stateful backend (SDPA), which is the one for a single batch at a time."""
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
