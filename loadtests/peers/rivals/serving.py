"""What the rival servers share: the model behind them, the answer they give, and how long they live."""

from __future__ import annotations

import copy
import os
import signal
from pathlib import Path
from threading import Thread
from time import perf_counter
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM


class Body(BaseModel):
    """The request, validated as a careful author would."""

    model_config = ConfigDict(extra="forbid", strict=True)

    prompts: list[str] = Field(min_length=1)
    max_new_tokens: int = Field(default=32, ge=1)
    ignore_eos: bool = False


class Served:
    """The exported model by `transformers`, one thread, greedy, under inference mode."""

    def __init__(self, folder: Path, template: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        # In evaluation mode already.
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa"
        )
        self._tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._template = template

    def generate(self, body: Body) -> dict[str, Any]:
        """The answer as launchbound gives it, with the model call's seconds beside it.

        Tokenising and decoding are the service's work, not the model's.
        """
        prompts = [self._tokenizer.encode(prompt).ids for prompt in body.prompts]
        began = perf_counter()
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            found = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=body.max_new_tokens,
                eos_token_id=None,
                pad_token_id=0,
            )
        tokens = found[:, ids.shape[1] :].tolist()
        seconds = perf_counter() - began
        answer = copy.copy(self._template)
        answer["outputs"] = [
            {"text": text, "finish_reason": "length", "completion_tokens": len(row)}
            for text, row in zip(self._tokenizer.decode_batch(tokens), tokens, strict=True)
        ]
        answer["model_seconds"] = seconds
        return answer


def end_with_input() -> None:
    """End this process and all that it started once standard input ends: the driver is done, or gone."""

    def wait() -> None:
        # Not through sys.stdin, whose lock a forked worker would inherit held, and wait for at its start.
        while os.read(0, 4096):
            pass
        os.killpg(os.getpgrp(), signal.SIGTERM)

    Thread(target=wait, daemon=True).start()
