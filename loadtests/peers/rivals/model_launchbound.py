"""launchbound's own `aot-inductor` in another precision: its steps, inputs and feed, without the service.

It computes something else than float32, so it answers how well it predicts a text, beside float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from loadtests.peers.rivals.worker import Loaded, Task, Tokens, serve
from models.opening import Opened, resolve
from models.quantized import quantize
from models.served import Served
from service.engine.generation import new_feed, prefill
from service.modes import MODES
from service.step.buffers import Buffers, allocate
from service.step.callables import Step, build_step
from service.step.meters import Meter, Readings
from service.step.process_state import prepare_process

MODE = MODES["aot-inductor"]
CHUNK = 64
WINDOW, GIVEN = 160, 32
"""Tokens of a row of text, and how many of them a prefill takes: those behind are predicted."""


def load(task: Task) -> Loaded:
    """The model in bfloat16, its linear weights as int8 where `task.variant` is `int8`."""
    prepare_process(str(task.made), task.model)
    torch.set_num_threads(1)
    opened = resolve(task.model)
    largest = max(task.batches)
    model = _model(opened, largest, torch.bfloat16)
    if task.variant == "int8":
        model = quantize(model)
    buffers = allocate(model, task.batches, CHUNK)
    loops = {bucket: _Loop(model, own) for bucket, own in buffers.items()}

    def call(tokens: Tokens, new_tokens: int) -> Tokens:
        with torch.inference_mode():
            return loops[len(tokens)].run(tokens, new_tokens)

    exact = _model(opened, largest, torch.float32)
    with torch.inference_mode():
        text = _Text(opened, exact, task.texts)
        # The worst of all batch sizes: each has code of its own, and any may be wrong.
        own = [text.bits_per_byte(loop.prefill, loop.decode, buffers[size]) for size, loop in loops.items()]
        reference = text.bits_per_byte(exact, exact, allocate(exact, [largest], CHUNK)[largest])
        quality = {
            "bits_per_byte": max(own), "float32_bits_per_byte": reference, "text_bytes": text.size
        }  # fmt: skip
    settings = {
        "call": "the engine's own steps, inputs and feed in a loop",
        "step": f"AOTInductor, {MODE.cpu.package}",
        "threads": torch.get_num_threads(),
        "dtype": "bfloat16",
        "linear weights": "int8, a scale per row" if task.variant == "int8" else "bfloat16",
    }
    return Loaded(call, settings, ["torch"], quality)


def _model(opened: Opened, rows: int, dtype: torch.dtype) -> Served:
    model = opened.model(rows, torch.device("cpu"), dtype, dtype, chunk=CHUNK)
    return model.requires_grad_(False)


class _Loop:
    """The steps of one batch size; each is compiled, or loaded, when it is first called."""

    def __init__(self, model: Served, buffers: Buffers) -> None:
        self.prefill, self.decode = build_step(MODE, model), build_step(MODE, model)
        self._buffers, self._feed = buffers, new_feed(buffers)
        self._meter, self._readings = Meter(), Readings()

    def run(self, prompts: Tokens, new_tokens: int) -> Tokens:
        feed, readings = self._feed, self._readings
        found = prefill(prompts, feed, self.prefill, self._meter, readings, lambda: None)
        feed.place(found.lengths)
        newest, used = found.greedy, max(found.lengths)
        steps = [newest.tolist()]
        for _ in range(new_tokens - 1):
            used += 1
            feed.put(newest, steps[-1], readings)
            arguments = self._buffers.arguments("decode", reach=self._buffers.reach(used))
            _, newest = self._meter.run(self.decode, arguments, readings)
            feed.advance(readings)
            steps.append(newest.tolist())
        return [list(row) for row in zip(*steps, strict=True)]


class _Text:
    """Rows of WINDOW tokens of `texts`, joined; `size` is the bytes of those that are predicted."""

    def __init__(self, opened: Opened, model: Served, texts: Sequence[str]) -> None:
        tokenizer = opened.tokenizer(model.config.vocabulary)
        tokens = tokenizer.encode("\n\n".join(texts))
        length = min(WINDOW, model.config.context, len(tokens))
        self.given = min(GIVEN, length // 2)
        starts = range(0, len(tokens) - length + 1, length)
        self.rows = torch.tensor([tokens[start : start + length] for start in starts])
        self.size = sum(len(tokenizer.decode(row[self.given :]).encode()) for row in self.rows.tolist())

    def bits_per_byte(self, prefill_step: Step | Served, decode: Step | Served, buffers: Buffers) -> float:
        """What the steps need to predict each token behind the given ones from those before it in its row."""
        groups = self.rows.split(buffers.bucket)
        nats = sum(float(_nats(prefill_step, decode, buffers, rows, self.given)) for rows in groups)
        return nats / math.log(2) / self.size


def _nats(
    prefill_step: Step | Served, decode: Step | Served, buffers: Buffers, rows: Tensor, given: int
) -> Tensor:
    """Of `rows` [at most the bucket, tokens]: the sum of the cross-entropies behind the `given` tokens."""
    count, length = rows.shape
    chunk = buffers.chunks[buffers.padded(given)].zero_()
    chunk[:count, :given] = rows[:, :given]
    buffers.positions.zero_()
    buffers.last.fill_(given - 1)
    logits, _ = prefill_step(*buffers.arguments("prefill", chunk.shape[1]))
    nats = F.cross_entropy(logits[:count].float(), rows[:, given], reduction="sum")
    buffers.prepare().zero_()
    for position in range(given, length - 1):
        buffers.token[:count].copy_(rows[:, position : position + 1])
        buffers.positions.fill_(position)
        logits, _ = decode(*buffers.arguments("decode", reach=buffers.reach(position + 1)))
        nats += F.cross_entropy(logits[:count].float(), rows[:, position + 1], reduction="sum")
    return nats


if __name__ == "__main__":
    serve(load)
