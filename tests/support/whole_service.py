"""One whole service of a small model in the five modes, for all tests that leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from service.front.launch import launched
from tests.support.serving import FRESH, until

OPTIONS = ["--batch-sizes=2"]
PROMPTS = ["def mean(values):\n", "import os\n" * 30]
START_SECONDS = 500.0


@dataclass(frozen=True, slots=True)
class WholeService:
    """`while_compiling`: what it answered to a ready mode, to one that was not, and of its readiness."""

    url: str
    http: httpx.Client
    while_compiling: tuple[httpx.Response, httpx.Response, httpx.Response]


def write_small_tiny(folder: Path, hidden: int = 64) -> Path:
    """A model that compiles in little time, with tiny's tokenizer; `folder` names it. It imports torch.

    Models of another `hidden` share no compiled code.
    """
    from models import checkpoint
    from models.config import Config
    from models.tokenizer import Tokenizer
    from models.transformer import Transformer

    config = Config(layers=1, width=64, heads=2, kv_heads=1, head_width=32, hidden=hidden, vocabulary=4096)
    checkpoint.save(Transformer(config, 1, seed=3), folder)
    Tokenizer.load(checkpoint.TINY_FOLDER, config.vocabulary).save(folder)
    return folder


def statuses(http: httpx.Client) -> dict[str, dict[str, Any]]:
    return {mode["mode"]: mode for mode in http.get("/v1/modes").json()["modes"]}


def generate(http: httpx.Client, mode: str, **body: object) -> httpx.Response:
    fields = {"prompts": PROMPTS, "max_new_tokens": 24, "ignore_eos": True, **body}
    return http.post(f"/v1/modes/{mode}/generate", json=fields)


@contextmanager
def whole_service(log: Path, environment: Mapping[str, str]) -> Iterator[WholeService]:
    """Yields once all modes are ready and sampled; nothing of its model has been compiled before."""
    with (
        launched(OPTIONS, log, environment) as url,
        httpx.Client(base_url=url, headers=FRESH, timeout=START_SECONDS, trust_env=False) as http,
    ):
        until(
            lambda: statuses(http)["compiled"]["state"] == "warming", "the first compilation", START_SECONDS
        )
        answers = (
            generate(http, "eager", max_new_tokens=2),
            generate(http, "reduce-overhead"),
            http.get("/health/ready"),
        )
        until(lambda: http.get("/health/ready").status_code == 200, "all modes to be ready", START_SECONDS)
        until(lambda: http.get("/v1/modes").json()["engine"]["warm"], "samples of their steps", START_SECONDS)
        yield WholeService(url, http, answers)
