"""ONNX Runtime on its model builder's float32 graph: a session in a loop of our own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from loadtests.peers.rivals.worker import Loaded, Task, Tokens, serve
from service.parent_death import owned

GRAPH = "onnxruntime_genai.models.builder -p fp32 -e cpu (grouped-query attention operator)"


def build(task: Task) -> Path:
    """The folder with the graph, made once by the package's own model builder."""
    built = task.made / "model"
    if not (built / "genai_config.json").is_file():
        command = [
            sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(task.folder),
            "-o", str(built), "-p", "fp32", "-e", "cpu", "-c", str(task.made / "cache"),
        ]  # fmt: skip
        done = subprocess.run(owned(command, signal.SIGKILL), capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the model builder failed: {(done.stderr or done.stdout).strip()[-400:]}")
    return built


def load(task: Task) -> Loaded:
    """One session in a loop of our own; the cache is allocated once per batch size and written in place."""
    options: Any = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    loaded: Any = ort.InferenceSession(
        str(build(task) / "model.onnx"), options, providers=["CPUExecutionProvider"]
    )
    loops: dict[int, _Loop] = {}

    def call(tokens: Tokens, new_tokens: int) -> Tokens:
        rows = len(tokens)
        if rows not in loops:
            loops[rows] = _Loop(loaded, task, rows)
        return loops[rows].run(np.asarray(tokens, dtype=np.int64), new_tokens)

    settings = {
        "graph": GRAPH,
        "call": "InferenceSession.run_with_iobinding in a Python loop, keys and values bound to one buffer, "
        "greedy by numpy's argmax",
        "threads": {"intra": 1, "inter": 1, "spinning": False},
        "optimisation": "ORT_ENABLE_ALL",
    }
    return Loaded(call, settings, ["onnxruntime", "onnxruntime-genai"])


class _Loop:
    """Bindings for `rows` rows. Input and output caches are one buffer, as the operator allows."""

    def __init__(self, session: Any, task: Task, rows: int) -> None:  # noqa: ANN401
        config = json.loads((task.folder / "config.json").read_text())
        heads, width = config["num_key_value_heads"], config["head_dim"]
        self._session, length = session, task.prompt_tokens + task.new_tokens
        self._names = {entry.name for entry in session.get_inputs()}
        self._caches = {
            entry.name: ort.OrtValue.ortvalue_from_numpy(
                np.zeros((rows, heads, length, width), dtype=np.float32)
            )
            for entry in session.get_inputs()
            if entry.name.startswith("past_key_values")
        }
        # The arrays back the values bound to the output: nothing is copied out of them.
        self._logits = {
            count: np.empty((rows, count, task.vocabulary), dtype=np.float32)
            for count in (task.prompt_tokens, 1)
        }
        self._outputs = {
            count: ort.OrtValue.ortvalue_from_numpy(logits) for count, logits in self._logits.items()
        }
        self._binding = session.io_binding()
        for name, cache in self._caches.items():
            self._binding.bind_ortvalue_input(name, cache)
            self._binding.bind_ortvalue_output(name.replace("past_key_values", "present"), cache)

    def run(self, prompts: np.ndarray[Any, Any], new_tokens: int) -> Tokens:
        rows, length = prompts.shape
        mask = np.ones((rows, length + new_tokens), dtype=np.int64)
        token = self._step(prompts, mask[:, :length], 0)
        found = [token]
        for count in range(new_tokens - 1):
            used = length + count + 1
            token = self._step(token[:, None], mask[:, :used], length + count)
            found.append(token)
        tokens: Tokens = np.stack(found, axis=1).tolist()
        return tokens

    def _step(
        self, tokens: np.ndarray[Any, Any], mask: np.ndarray[Any, Any], begin: int
    ) -> np.ndarray[Any, Any]:
        binding, count = self._binding, tokens.shape[1]
        binding.bind_cpu_input("input_ids", np.ascontiguousarray(tokens))
        binding.bind_cpu_input("attention_mask", np.ascontiguousarray(mask))
        if "position_ids" in self._names:
            positions = np.arange(begin, begin + count, dtype=np.int64)[None].repeat(len(tokens), 0)
            binding.bind_cpu_input("position_ids", positions)
        binding.bind_ortvalue_output("logits", self._outputs[count])
        self._session.run_with_iobinding(binding)
        greedy: np.ndarray[Any, Any] = self._logits[count][:, -1].argmax(axis=-1)
        return greedy


if __name__ == "__main__":
    serve(load)
