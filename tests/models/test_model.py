"""The decoder: ragged batches, the detached cache, layouts of its weights, shapes; and its training."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch.autograd.graph import Node
from torch.nn import functional as F

from models.checkpoint import TINY_FOLDER, Checkpoint
from models.config import Config, ConfigError
from models.served import lay_out, layout_of, linears
from models.tokenizer import Tokenizer
from models.training import train
from models.training.train import Corpus
from models.transformer import Transformer, attend
from tests.support.small_models import SMALL, greedy

SHORT = [7, 2, 9]
LONG = [(31 * place + 5) % 4096 for place in range(150)]


@pytest.fixture(scope="module")
def tiny() -> Transformer:
    return Checkpoint("tiny").build(4)


@pytest.mark.parametrize("prompt", [SHORT, LONG, LONG[:64], LONG[:65]], ids=len)
def test_a_prompt_alone_equals_the_same_prompt_inside_a_ragged_batch(
    tiny: Transformer, prompt: list[int]
) -> None:
    tokens, logits = greedy(tiny, [prompt], new=12)
    together, logits_together = greedy(tiny, [LONG[:100], prompt, [5]], new=12)
    assert together[1].tolist() == tokens[0].tolist()
    torch.testing.assert_close(logits_together[1], logits[0], atol=1e-4, rtol=1e-4)


def test_the_prefill_chunk_length_does_not_change_the_logits(tiny: Transformer) -> None:
    _, small = greedy(tiny, [LONG, SHORT], new=4, chunk=16)
    _, large = greedy(tiny, [LONG, SHORT], new=4, chunk=256)
    torch.testing.assert_close(small, large, atol=1e-4, rtol=1e-4)


def test_a_sequence_may_fill_the_context_to_its_last_position(tiny: Transformer) -> None:
    prompt = [11] * (tiny.config.context - 1)
    _, logits = greedy(tiny, [prompt], new=2)
    assert logits.isfinite().all()


def test_attention_for_a_compiler_computes_what_the_kernel_does() -> None:
    torch.manual_seed(0)
    q, keys, values = torch.randn(2, 2, 3, 32), *torch.randn(2, 2, 40, 2, 32)
    masked = (torch.arange(40) > torch.tensor([[9], [30]])).view(2, 1, 1, 40).expand(2, 1, 3, 40)
    mask = masked * torch.finfo(torch.float32).min
    expected = F.scaled_dot_product_attention(q, keys.transpose(1, 2), values.transpose(1, 2), attn_mask=mask)
    torch.testing.assert_close(attend(q, keys, values, mask), expected)


@pytest.mark.compiles
def test_only_a_compiled_decode_step_on_a_cpu_leaves_the_attention_kernel(tiny: Transformer) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    compiled = torch.compile(tiny, backend=backend, fullgraph=True, dynamic=False)
    cache = tiny.new_cache(1, torch.float32)
    last = torch.zeros(1, dtype=torch.int64)
    with torch.no_grad():
        for tokens in (torch.tensor([[5, 6]]), torch.tensor([[7]])):
            compiled(tokens, last, last, cache)
    attends = [
        sum(node.target is F.scaled_dot_product_attention for node in graph.graph.nodes) for graph in graphs
    ]
    assert attends == [tiny.config.layers, 0]


def tape_size(tensor: torch.Tensor) -> int:
    """How many backward nodes can be reached from `tensor`."""
    seen: set[Node] = set()
    ahead = [tensor.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is not None and node not in seen:
            seen.add(node)
            ahead += [following for following, _ in node.next_functions]
    return len(seen)


def test_the_tape_of_a_step_does_not_reach_the_step_before(tiny: Transformer) -> None:
    cache = tiny.new_cache(1, torch.float32)
    last = torch.zeros(1, dtype=torch.int64)
    sizes = []
    with torch.enable_grad():
        for position in range(3):
            logits, _ = tiny(torch.tensor([[5]]), torch.tensor([position]), last, cache)
            sizes.append(tape_size(logits))
    assert sizes[0] > len(list(tiny.parameters()))
    assert sizes[0] == sizes[1] == sizes[2]
    assert not any(part.requires_grad for layer in cache for part in layer)


@pytest.mark.parametrize(
    ("field", "changes"), [("kv_heads", {"heads": 6, "kv_heads": 4}), ("head_width", {"head_width": 33})]
)
def test_a_shape_that_cannot_be_built_names_the_field(field: str, changes: dict[str, int]) -> None:
    sizes = {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "head_width": 8, "hidden": 32}
    with pytest.raises(ConfigError, match=field):
        Config(**{**sizes, **changes}, vocabulary=64)


# Layouts of linear weights


def test_all_linear_layers_are_laid_out_and_compute_the_same() -> None:
    model, prompts = lay_out(Transformer(SMALL, 2), "transposed"), [[7, 2, 9], [5]]
    expected = greedy(Transformer(SMALL, 2), prompts, 3)[1]
    assert {linear.weight.stride(0) for linear in linears(model)} == {1}
    assert layout_of(model) == "transposed"
    torch.testing.assert_close(greedy(model, prompts, 3)[1], expected)
    assert layout_of(lay_out(model, "aten")) == "aten"
    assert torch.equal(greedy(model, prompts, 3)[1], expected)


def test_an_embedding_keeps_its_rows_where_it_shared_them_with_the_head() -> None:
    model = Transformer(SMALL, 2)
    assert model.head.weight is model.embedding.weight
    lay_out(model, "transposed")
    assert model.embedding.weight.is_contiguous()
    assert torch.equal(model.head.weight, model.embedding.weight)


# Training: its forward is the served one, the loss falls, and what it writes can be served


TOKENIZER = Tokenizer.load(TINY_FOLDER)
TRAINED = Config(layers=2, width=16, heads=2, kv_heads=1, head_width=8, hidden=32, vocabulary=4096)
TEXT = Corpus(
    training=tuple(f"def f{n}(value):\n    return value + {n}\n" * 20 for n in range(8)),
    held_out=("def g(value):\n    return value - 1\n" * 10,),
)
PLAN = train.TrainingPlan(steps=40, minutes=60, batch=4, length=32, evaluate_every=20, compile=False)


def test_the_training_forward_gives_the_logits_of_the_served_steps() -> None:
    model = Checkpoint("tiny").build(2)
    prompts = [
        TOKENIZER.encode("import os\n\n\ndef walk(top):\n"),
        TOKENIZER.encode("class Node(object):\n    "),
    ]
    tokens, served = greedy(model, prompts, new=24)
    for row, prompt in enumerate(prompts):
        whole = torch.tensor([prompt + tokens[row].tolist()])
        with torch.no_grad():
            trained = train.all_logits(model, whole)[0, len(prompt) - 1 : -1]
        torch.testing.assert_close(trained, served[row], atol=1e-4, rtol=1e-4)


def test_training_lowers_the_loss_on_held_out_text_and_its_folder_can_be_served(tmp_path: Path) -> None:
    progress = train.train(PLAN, TRAINED, TEXT, TOKENIZER, tmp_path)
    seen = [measured for *_, measured in progress if measured is not None]
    uniform = len(TOKENIZER.encode(TEXT.held_out[0])) * 12 / TEXT.held_out_bytes
    assert len(seen) == 2
    assert seen[-1] < seen[0] < uniform
    assert Checkpoint(tmp_path).build(1).config == TRAINED
    assert Tokenizer.load(tmp_path, TRAINED.vocabulary).encode("def f0") == TOKENIZER.encode("def f0")


def test_held_out_files_are_split_by_path_whatever_they_contain(tmp_path: Path) -> None:
    names = [f"module{number}.py" for number in range(200)]
    for name in names:
        (tmp_path / name).write_text(f"# {name}\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text("# skipped\n")
    (tmp_path / "copy_of_module1.py").write_text("# module1.py\n")
    (tmp_path / "latin.py").write_bytes(b"# \xe9\n")
    text = train.read(tmp_path)
    assert set(text.held_out) == {f"# {name}\n" for name in names if train.is_held_out(name)}
    assert len(text.training) + len(text.held_out) == 200
    assert 1 < len(text.held_out) < 30


def test_bits_of_the_transformer_count_every_token_once_whatever_the_window() -> None:
    model = Transformer(TRAINED, 1).eval()
    files = train.with_start(TEXT.held_out, TOKENIZER)
    tokens = torch.from_numpy(files[0]).unsqueeze(0)
    with torch.no_grad():
        bits = train.loss_of(model, tokens).item() * (len(files[0]) - 1) / math.log(2)
    assert train.bits(model, files, length=512) == pytest.approx(bits, rel=3e-3)
    alone = len(files[0]) - 1  # windows of one token see only the one before
    assert train.bits(model, files, length=1) == pytest.approx(12 * alone, rel=0.05)
