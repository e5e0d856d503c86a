"""ONNX Runtime on its model builder's float32 graph: by `session` in a loop of our own, or by `genai`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as og

from loadtests.peers.rivals.worker import Loaded, Task, Tokens, serve

GRAPH = "onnxruntime_genai.models.builder -p fp32 -e cpu (grouped-query attention operator)"


def build(task: Task) -> Path:
    """The folder with the graph, made once by the package's own model builder."""
    built = task.made / "model"
    if not (built / "genai_config.json").is_file():
        command = [
            sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(task.folder),
            "-o", str(built), "-p", "fp32", "-e", "cpu", "-c", str(task.made / "cache"),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the model builder failed: {(done.stderr or done.stdout).strip()[-400:]}")
    return built


def settle(built: Path, task: Task) -> dict[str, Any]:
    """Set one thread without spinning, and the end token, which must be one; returns the session options."""
    path = built / "genai_config.json"
    config = json.loads(path.read_text())
    options = config["model"]["decoder"]["session_options"]
    options.update(intra_op_num_threads=1, inter_op_num_threads=1)
    # Any other key is handed to the session as an entry of its configuration.
    options["session.intra_op.allow_spinning"] = options["session.inter_op.allow_spinning"] = "0"
    config["model"].update(eos_token_id=task.end_of_text, bos_token_id=0, pad_token_id=0)
    config["search"].update(past_present_share_buffer=True, do_sample=False, num_beams=1)
    path.write_text(json.dumps(config, indent=2))
    return dict(options)


def genai(task: Task) -> Loaded:
    """`onnxruntime_genai.Generator` on the graph."""
    built = build(task)
    options = settle(built, task)
    model: Any = og.Model(str(built))
    settings = {
        "graph": GRAPH,
        "call": "Generator, greedy, keys and values in one shared buffer as long as the whole call",
        "session_options": options,
    }

    def call(tokens: Tokens, new_tokens: int) -> Tokens:
        prompts = np.asarray(tokens, dtype=np.int32)
        params = og.GeneratorParams(model)
        length = prompts.shape[1] + new_tokens
        params.set_search_options(batch_size=len(tokens), max_length=length, do_sample=False)
        generator = og.Generator(model, params)
        generator.append_tokens(prompts)
        while not generator.is_done():
            generator.generate_next_token()
        return [
            np.asarray(generator.get_sequence(row))[prompts.shape[1] : length].tolist()
            for row in range(len(tokens))
        ]

    return Loaded(call, settings, ["onnxruntime-genai", "onnxruntime"])


def session(task: Task) -> Loaded:
    """One session in a loop of our own; the cache is allocated once per batch size and written in place."""
    import onnxruntime as ort

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
        import onnxruntime as ort

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
    serve(lambda task: genai(task) if task.variant == "genai" else session(task))
