"""ONNX Runtime's generate(): the model builder's float32 graph, run by `onnxruntime_genai.Generator`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as og

from loadtests.peers.rivals.worker import Loaded, Task, Tokens, serve


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


def shape_of_cache(folder: Path) -> tuple[int, int]:
    """Heads of keys and values, and their width, of the Hugging Face model in `folder`."""
    config = json.loads((folder / "config.json").read_text())
    return config["num_key_value_heads"], config["head_dim"]


def load(task: Task) -> Loaded:
    """Build, set, and load the graph."""
    built = build(task)
    options = settle(built, task)
    model: Any = og.Model(str(built))
    settings = {
        "graph": "onnxruntime_genai.models.builder -p fp32 -e cpu (grouped-query attention operator)",
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


if __name__ == "__main__":
    serve(load)
