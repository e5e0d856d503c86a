"""`transformers`: `generate` with its dynamic cache in inference mode, or with a static cache, compiled."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, CompileConfig, GenerationConfig

from loadtests.peers.rivals.worker import Loaded, Task, Tokens, serve


def load(task: Task) -> Loaded:
    """Load the folder in float32; `task.variant` is `dynamic` or `static`."""
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    # In evaluation mode already.
    model: Any = AutoModelForCausalLM.from_pretrained(
        task.folder, dtype=torch.float32, attn_implementation="sdpa"
    )
    settings: dict[str, object] = {
        "call": "model.generate, greedy, under torch.inference_mode",
        "threads": torch.get_num_threads(),
        "dtype": str(model.dtype).removeprefix("torch."),
        "attention": "sdpa",
        "cache": task.variant,
    }
    more: dict[str, Any] = {}
    if task.variant == "static":
        # Without this switch `generate` compiles on GPUs only.
        compiling: Any = CompileConfig(fullgraph=False, dynamic=False, mode="default")
        compiling._compile_all_devices = True
        more = {"cache_implementation": "static", "compile_config": compiling}
        settings["compile"] = (
            "torch.compile by generate's compile_config, on the CPU too, mode default, a graph per batch size"
        )

    def call(tokens: Tokens, new_tokens: int) -> Tokens:
        prompts = torch.tensor(tokens)
        config = GenerationConfig(  # type: ignore[no-untyped-call]
            do_sample=False,
            max_new_tokens=new_tokens,
            eos_token_id=None,
            pad_token_id=0,
            disable_compile=task.variant == "dynamic",
            **more,
        )
        with torch.inference_mode():
            found = model.generate(prompts, attention_mask=torch.ones_like(prompts), generation_config=config)
        new: Tokens = found[:, prompts.shape[1] :].tolist()
        return new

    return Loaded(call, settings, ["torch", "transformers"])


if __name__ == "__main__":
    serve(load)
