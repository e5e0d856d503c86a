"""Text: an encoder as BERT, of torch's own layers, and one step of an encoder-decoder as T5."""

from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WORDS, WIDTH, HEADS, LENGTH = 200, 64, 4, 16


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.register_buffer("numbers", torch.arange(LENGTH))
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.pooler = nn.Linear(WIDTH, WIDTH)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        x = self.words(input_ids) + self.places(self.numbers)
        found = self.encoder(x, src_key_padding_mask=attention_mask == 0)
        return found, torch.tanh(self.pooler(found[:, 0]))


def build_bert() -> tuple:
    def inputs(batch: int, seed: int) -> dict[str, Tensor]:
        lengths = torch.randint(1, LENGTH + 1, (batch, 1))
        return {
            "input_ids": torch.randint(WORDS, (batch, LENGTH)),
            "attention_mask": (torch.arange(LENGTH) < lengths).long(),
        }

    return Bert().eval(), inputs


class Attention(nn.Module):
    """T5's: not scaled, with a bias by distance."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.norm = nn.RMSNorm(WIDTH)

    def forward(self, x: Tensor, keys: Tensor | None, bias: Tensor | None) -> Tensor:
        y = self.norm(x)
        heads = [part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self._parts(y, keys)]
        found = F.scaled_dot_product_attention(*heads, attn_mask=bias, scale=1.0)
        return x + self.o(found.transpose(1, 2).flatten(2))

    def _parts(self, y: Tensor, keys: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        seen = y if keys is None else keys
        return self.q(y), self.k(seen), self.v(seen)


@dataclass
class Output:
    """As the outputs of `transformers`, it is a class of its own."""

    logits: Tensor
    encoded: Tensor


class T5Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.bias = nn.Embedding(WORDS, WIDTH), nn.Embedding(2 * LENGTH, HEADS)
        self.encoder = nn.ModuleList(Attention() for _ in range(2))
        self.own, self.cross = Attention(), Attention()

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor) -> Output:
        encoded, bias = self.words(input_ids), self._distances(input_ids.shape[1], input_ids.device)
        for layer in self.encoder:
            encoded = layer(encoded, None, bias)
        y = self.words(decoder_input_ids)
        y = self.own(y, None, self._distances(y.shape[1], y.device))
        y = self.cross(y, encoded, None)
        return Output(y[:, -1] @ self.words.weight.T, encoded)

    def _distances(self, length: int, device: torch.device) -> Tensor:
        places = torch.arange(length, device=device)
        return self.bias(places[None] - places[:, None] + LENGTH).permute(2, 0, 1)


def build_t5() -> SimpleNamespace:
    def inputs(batch: int, seed: int) -> tuple[Tensor, Tensor]:
        return torch.randint(WORDS, (batch, LENGTH)), torch.randint(WORDS, (batch, 3))

    return SimpleNamespace(model=T5Step().eval(), inputs=inputs, name="t5-step", tolerance=1e-4)
