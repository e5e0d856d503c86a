"""OpenVINO on optimum-intel's stateful export: one infer `request` in a loop of our own, or its `genai`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from loadtests.peers.rivals.worker import Loaded, Task, Tokens, serve

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
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the export failed: {(done.stderr or done.stdout).strip()[-400:]}")
    return made


def request(task: Task) -> Loaded:
    """Compile the stateful model for one thread, the greedy choice added to its graph."""
    core: Any = ov.Core()
    model: Any = core.read_model(export(task) / "openvino_model.xml")
    _add_greedy(model)
    compiled: Any = core.compile_model(model, "CPU", PROPERTIES)
    infer: Any = compiled.create_infer_request()
    names = {port.get_any_name() for port in compiled.inputs}

    def step(tokens: np.ndarray[Any, Any], used: int) -> np.ndarray[Any, Any]:
        rows, count = tokens.shape
        inputs = {"input_ids": tokens, "attention_mask": np.ones((rows, used), dtype=np.int64)}
        if "position_ids" in names:
            inputs["position_ids"] = np.arange(used - count, used, dtype=np.int64)[None].repeat(rows, 0)
        if "beam_idx" in names:
            inputs["beam_idx"] = np.arange(rows, dtype=np.int32)
        infer.infer(inputs, share_inputs=True, share_outputs=True)
        greedy: np.ndarray[Any, Any] = infer.get_tensor("greedy").data
        return greedy.reshape(rows, 1).astype(np.int64)

    def call(tokens: Tokens, new_tokens: int) -> Tokens:
        prompts = np.asarray(tokens, dtype=np.int64)
        infer.reset_state()
        found = [step(prompts, prompts.shape[1])]
        for count in range(1, new_tokens):
            found.append(step(found[-1], prompts.shape[1] + count))
        result: Tokens = np.concatenate(found, axis=1).tolist()
        return result

    settings = {
        "graph": "optimum-cli export openvino --weight-format fp32 (stateful), the head cut to the last "
        "position and the greedy choice added to the graph",
        "call": "one InferRequest in a Python loop",
        "properties": {name: str(compiled.get_property(name)) for name in PROPERTIES},
    }
    return Loaded(call, settings, ["openvino", "optimum-intel"])


def _add_greedy(model: Any) -> None:  # noqa: ANN401
    """Replace the output `logits` [batch, tokens, vocabulary] by `greedy` [batch], the last position's."""
    from openvino import opset13 as ops

    result = next(r for r in model.get_results() if "logits" in r.output(0).get_tensor().get_names()
                  or "logits" in r.input_value(0).get_names())  # fmt: skip
    product = result.input_value(0).get_node()
    last = ops.constant(np.array([-1], dtype=np.int64))
    # The head's product for the last position only, as OpenVINO GenAI cuts it too.
    hidden = ops.gather(product.input_value(0), last, ops.constant(np.int64(1)))
    product.input(0).replace_source_output(hidden.output(0))
    greedy: Any = ops.topk(product.output(0), ops.constant(np.int64(1)), -1, "max", "none")
    chosen = greedy.output(1)
    chosen.get_tensor().set_names({"greedy"})
    model.remove_result(result)
    model.add_results([ops.result(chosen)])
    model.validate_nodes_and_infer_types()


def genai(task: Task) -> Loaded:
    """`LLMPipeline` with the stateful backend (SDPA), which is the one for a single batch at a time."""
    import openvino_genai

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
    serve(lambda task: genai(task) if task.variant == "genai" else request(task))
