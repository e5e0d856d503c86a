"""CTranslate2: its own converter from Hugging Face Llama folders, and `Generator.generate_batch`."""

from __future__ import annotations

import json
from typing import Any

import ctranslate2

from loadtests.peers.rivals.worker import Loaded, Task, Tokens, serve


def load(task: Task) -> Loaded:
    """Convert once to float32, then load with one thread and no queue beyond it."""
    converted = task.made / "model"
    if not (converted / "model.bin").is_file():
        converter: Any = ctranslate2.converters.TransformersConverter(str(task.folder), load_as_float16=False)
        converter.convert(str(converted), quantization=None, force=True)
    generator: Any = ctranslate2.Generator(
        str(converted), device="cpu", compute_type="float32", inter_threads=1, intra_threads=1
    )
    vocabulary = json.loads((converted / "vocabulary.json").read_text())
    settings = {
        "call": "Generator.generate_batch, beam_size 1, no prompt in the result, end of text never stops",
        "threads": {"inter": 1, "intra": 1},
        "dtype": generator.compute_type,
        "words": "the API takes tokens as strings: their look-up is part of the call",
    }

    def call(tokens: Tokens, new_tokens: int) -> Tokens:
        results = generator.generate_batch(
            [[vocabulary[token] for token in row] for row in tokens],
            beam_size=1,
            sampling_topk=1,
            max_length=new_tokens,
            include_prompt_in_result=False,
            # An id that no token has: nothing ends a text early.
            end_token=[task.vocabulary + 1],
            max_batch_size=0,
        )
        return [result.sequences_ids[0] for result in results]

    return Loaded(call, settings, ["ctranslate2"])


if __name__ == "__main__":
    serve(load)
