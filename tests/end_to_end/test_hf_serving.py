"""Models of Hugging Face through the real engine: `transformers`' own tokens, one in all modes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import pytest
import torch
from torch._dynamo import graph_break
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.models.llama.modeling_llama import LlamaMLP

from service.engine.inbox import LocalInbox, local_job
from service.engine.loop import Engine
from service.front.settings import Settings
from service.modes import MODES, default_modes
from service.records import EngineSettings, Job
from tests.support.hf_folders import write_model

IN_ALL_MODES, OF_SEVERAL_LAYERS = "gpt2", "qwen3"
KINDS = [IN_ALL_MODES, *(pytest.param(kind, marks=pytest.mark.long) for kind in ("llama", OF_SEVERAL_LAYERS))]
NEW = 8
PROMPTS = [
    "import o",
    "class Stack:\n    def push(self, item):\n        self.items.append(item)\n\n    def pop(self):\n"
    "        if not self.items:\n            raise IndexError('empty')\n        return self.items.pop()\n\n"
    "    def __len__(self):\n        return len(self.items)\n\n    def peek(self):\n"
    "        return self.items[-1]\n\n    def clear(",
]
"""One of less than a chunk of prefill, one of more."""

DEFAULTS = Settings()
"""What a user gets. Most tests that compile do so for one batch size: others repeat its graphs."""

ONE_BATCH = [DEFAULTS.batch_sizes[1]]

PLAIN = ["eager", "no_grad", "inference_mode"]


@dataclass
class Served:
    modes: list[str]
    folder: Path
    inbox: LocalInbox
    expected: list[list[int]] = field(default_factory=list)


def serve(folder: Path, jobs: list[Job], modes: list[str], cache: Path, batch_sizes: list[int]) -> Served:
    """Run `jobs` in an engine of this process, which is afterwards as it was."""
    inbox, threads = LocalInbox(jobs), torch.get_num_threads()
    settings = EngineSettings(
        address="", model=f"hf:{folder}", modes=modes, batch_sizes=batch_sizes, cache_folder=str(cache),
        prefill_chunk=DEFAULTS.prefill_chunk, context=DEFAULTS.context, threads=1,
    )  # fmt: skip
    try:
        Engine(settings, inbox).run()
    finally:
        torch.compiler.set_stance("default")
        torch.set_num_threads(threads)
    return Served(modes, folder, inbox)


def generated(folder: Path, prompt: str, **options: object) -> list[int]:
    """New tokens as `transformers` gives them for one prompt alone, greedily."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    given = AutoTokenizer.from_pretrained(folder)(prompt, return_tensors="pt")
    kept = {"input_ids": given["input_ids"], "attention_mask": given["attention_mask"]}
    whole = model.generate(**kept, max_new_tokens=NEW, do_sample=False, pad_token_id=0, **options)
    tokens: list[int] = whole[0, kept["input_ids"].shape[1] :].tolist()
    return tokens


@pytest.fixture(scope="module", params=KINDS)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, common_cache: Path
) -> Served:
    """One architecture: a batch of two and a single prompt in each mode."""
    layers = {} if request.param == OF_SEVERAL_LAYERS else {"num_hidden_layers": 1}
    folder = write_model(tmp_path_factory.mktemp(request.param), request.param, **layers)
    modes = [name for name in default_modes() if request.param == IN_ALL_MODES or name != "reduce-overhead"]
    jobs = [
        local_job(f"{mode}-{len(prompts)}", mode, prompts, NEW, ignore_eos=True)
        for mode in modes
        for prompts in (PROMPTS, PROMPTS[:1])
    ]
    made = serve(folder, jobs, modes, common_cache, ONE_BATCH)
    made.expected = [generated(folder, prompt, min_new_tokens=NEW) for prompt in PROMPTS]
    return made


def test_tokens_equal_generate_in_every_mode_served(served: Served) -> None:
    outcomes = {outcome.id: outcome for outcome in served.inbox.outcomes}
    assert served.expected[0] != served.expected[1]
    for mode, count in product(served.modes, (2, 1)):
        outcome = outcomes[f"{mode}-{count}"]
        assert outcome.kind == "ok", outcome.problem
        assert [output.token_ids for output in outcome.outputs] == served.expected[:count]


def test_every_mode_is_ready_in_parity_and_runs_as_what_it_says(served: Served) -> None:
    statuses = served.inbox.modes
    assert {name: status.state for name, status in statuses.items()} == dict.fromkeys(served.modes, "ready")
    assert all(status.parity and status.parity.passed for status in statuses.values())
    assert [status.effective for status in statuses.values()] == [
        mode.effect("cuda" if torch.cuda.is_available() else "cpu").name
        for mode in (MODES[name] for name in served.modes)
    ]


def test_the_steps_of_every_mode_have_a_split(served: Served) -> None:
    for status in served.inbox.modes.values():
        assert {split.phase for split in status.splits} == {"prefill", "decode"}
    for outcome in served.inbox.outcomes:
        assert outcome.timings is not None
        assert outcome.timings.decode.dispatch_seconds is not None
        assert outcome.timings.decode.kernel_seconds is not None
        assert outcome.timings.dispatch_source == "sampled"


@pytest.mark.parametrize("kind", ["gemma2", "mistral"])
def test_tokens_beyond_a_sliding_window_equal_generate(tmp_path: Path, common_cache: Path, kind: str) -> None:
    folder = write_model(tmp_path / "model", kind)
    modes = ["eager", "compiled"] if kind == "gemma2" else PLAIN
    jobs = [local_job(mode, mode, PROMPTS, NEW, ignore_eos=True) for mode in modes]
    inbox = serve(folder, jobs, modes, common_cache, ONE_BATCH).inbox
    expected = [generated(folder, prompt, min_new_tokens=NEW) for prompt in PROMPTS]
    for outcome in inbox.outcomes:
        assert outcome.kind == "ok", outcome.problem
        assert [output.token_ids for output in outcome.outputs] == expected


def test_a_row_ends_where_generate_ends_it(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", "llama")
    free = generated(folder, PROMPTS[0], min_new_tokens=NEW)
    file = folder / "generation_config.json"
    changed = json.loads(file.read_text()) | {"eos_token_id": [4099, free[3]]}
    file.write_text(json.dumps(changed))
    expected = generated(folder, PROMPTS[0])
    jobs = [local_job("a", "no_grad", PROMPTS[:1], NEW)]
    outcome = serve(folder, jobs, ["no_grad"], tmp_path, DEFAULTS.batch_sizes).inbox.outcomes[0]
    assert outcome.outputs[0].token_ids == expected
    assert len(expected) < NEW
    assert outcome.outputs[0].finish_reason == "stop"


def test_where_no_one_graph_can_be_compiled_the_other_modes_serve_and_are_named(
    tmp_path: Path, common_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = LlamaMLP.forward

    def broken(self: LlamaMLP, x: torch.Tensor) -> torch.Tensor:
        graph_break()
        out: torch.Tensor = whole(self, x)
        return out

    monkeypatch.setattr(LlamaMLP, "forward", broken)
    folder = write_model(tmp_path / "model", "llama")
    jobs = [local_job(mode, mode, PROMPTS[:1], 2) for mode in ("eager", "compiled")]
    inbox = serve(folder, jobs, [*PLAIN, "compiled"], common_cache, ONE_BATCH).inbox
    failed = inbox.modes["compiled"]
    assert failed.state == "failed"
    assert "cannot be compiled as one graph; what remains: eager, no_grad, inference_mode." in str(
        failed.detail
    )
    assert [outcome.kind for outcome in inbox.outcomes] == ["ok", "error"]
    assert all(inbox.modes[mode].state == "ready" for mode in PLAIN)
