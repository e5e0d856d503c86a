"""A small model on the bench, shared by the tests of several studies, so that it is compiled once."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

from models.checkpoint import save
from models.config import Config
from models.transformer import Transformer
from service.measure.cases import Bench
from service.records import EngineSettings

CONFIG = Config(layers=2, width=32, heads=4, kv_heads=2, head_width=8, hidden=64, vocabulary=64, context=128)
BUCKETS = [1, 2]
PLAIN = ["eager", "no_grad", "inference_mode"]


@contextmanager
def small_bench() -> Iterator[Bench]:
    """One bench for the whole session; the thread count is what it was afterwards."""
    threads = torch.get_num_threads()
    bench = _bench()
    torch.set_num_threads(1)
    try:
        yield bench
    finally:
        torch.set_num_threads(threads)


@cache
def _bench() -> Bench:
    with tempfile.TemporaryDirectory() as folder:
        save(Transformer(CONFIG, max_batch=max(BUCKETS), seed=5), folder)
        cache = tempfile.mkdtemp()
        atexit.register(shutil.rmtree, cache, ignore_errors=True)
        settings = EngineSettings(
            address="",
            model=folder,
            device="cpu",
            modes=[*PLAIN, "compiled"],
            batch_sizes=BUCKETS,
            threads=1,
            linears="aten",
            cache_folder=cache,
        )
        return Bench(settings)


def quiet(*words: object) -> None:
    """Says nothing."""
    del words
