"""Small modules for what an engine is to find: how they differ from a plain one is in their names."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Inputs = Any
WIDTH = 8


class Linear(nn.Module):
    """The others are this one with something odd."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Any:
        return self.inner(x)


def inputs(batch: int, seed: int) -> tuple[Tensor]:
    return (torch.randn(batch, WIDTH),)


@dataclass
class Scored:
    scores: Tensor
    best: Tensor


class Nested(Linear):
    """Takes names, of which one is no tensor; returns trees, integers and NaN."""

    def forward(self, x: Tensor, ids: Tensor, power: int) -> Any:
        found = self.inner(x) ** power
        best = found.argmax(-1) + ids.sum(-1)
        return {"pair": (found, [best]), "never": (-x.square().sum(-1)).log(), "above": found > 0}


def build_nested() -> tuple[nn.Module, Inputs]:
    def named(batch: int, seed: int) -> dict[str, Any]:
        return {"x": torch.randn(batch, WIDTH), "ids": torch.randint(9, (batch, 3)), "power": 2}

    return Nested().eval(), named


class Branching(Linear):
    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x)
        if found.square().sum() > -1:  # branching breaks
            found = found.relu()
        return self.inner(found)


def build_branching() -> tuple[nn.Module, Inputs]:
    return Branching().eval(), inputs


class Deciding(Linear):
    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x)
        if bool((found < 1e9).all()):  # deciding breaks, of which Dynamo says so in another way
            return found
        return found.relu()


def build_deciding() -> tuple[nn.Module, Inputs]:
    return Deciding().eval(), inputs


class Wavering(Linear):
    """Goes either way, by its inputs."""

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x)
        if x.sum() > 0:  # wavering breaks
            return found.sin()
        return found.relu()


def build_wavering() -> tuple[nn.Module, Inputs]:
    return Wavering().eval(), inputs


class Recurrent(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(WIDTH, WIDTH)  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x)[0]  # recurrent breaks, and nothing is left to compile
        return found


def build_recurrent() -> tuple[nn.Module, Inputs]:
    return Recurrent().eval(), inputs


def build_allowed() -> tuple[nn.Module, Inputs]:
    torch._dynamo.config.allow_rnn = True
    return build_recurrent()


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.GRU(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Any:
        return self.inner(x)[0]  # mixed breaks 2, and nothing of this function is compiled


class Mixed(Linear):
    """Between two recurrent layers is what can be compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(WIDTH, WIDTH)
        self.gated, self.plain = Gated(), Linear()

    def forward(self, x: Tensor) -> Any:
        found = self.recurrent(x)[0]  # mixed breaks 1
        return self.gated(self.plain(found))


def build_mixed() -> tuple[nn.Module, Inputs]:
    return Mixed().eval(), inputs


class Dropping(Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.inner(x), 0.5)


def build_dropping() -> tuple[nn.Module, Inputs]:
    return Dropping().eval(), inputs


class Counting(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.calls: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        found: Tensor = self.inner(x)
        return found


def build_counting() -> tuple[nn.Module, Inputs]:
    return Counting().eval(), inputs


class Caching(Linear):
    """Fills a buffer at its first call, and then keeps it, which is no fault."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.zeros(0), persistent=False)
        self.scale: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if not self.scale.numel():
            self.scale = torch.ones(WIDTH)
        found: Tensor = self.inner(x) * self.scale
        return found


def build_caching() -> tuple[nn.Module, Inputs]:
    return Caching().eval(), inputs


class Overwriting(Linear):
    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x.mul_(2))
        return found


def build_overwriting() -> tuple[nn.Module, Inputs]:
    return Overwriting().eval(), inputs


class Clipping(Linear):
    """Changes its input once: the second time there is nothing left to change."""

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x.relu_())
        return found


def build_clipping() -> tuple[nn.Module, Inputs]:
    return Clipping().eval(), inputs


class Keeping(Linear):
    """Computes nothing for a tensor that it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.kept is None or self.kept[0] is not x:
            self.kept = x, self.inner(x)
        return self.kept[1]


def build_keeping() -> tuple[nn.Module, Inputs]:
    return Keeping().eval(), inputs


class Same(Linear):
    """Asks whether it is given one tensor twice."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        found: Tensor = self.inner(query)
        return found if query is key else found + self.inner(key)


def build_same() -> tuple[nn.Module, Inputs]:
    def twice(batch: int, seed: int) -> tuple[Tensor, Tensor]:
        return inputs(batch, seed) * 2

    return Same().eval(), twice


class Described(Linear):
    def forward(self, x: Tensor) -> Scored:
        scores = self.inner(x)
        return Scored(scores, scores.argmax(-1))


def build_described() -> tuple[nn.Module, Inputs]:
    return Described().eval(), inputs


class Distribution(Linear):
    def forward(self, x: Tensor) -> torch.distributions.Normal:
        return torch.distributions.Normal(self.inner(x), 1.0)


def build_distribution() -> tuple[nn.Module, Inputs]:
    return Distribution().eval(), inputs


class Tagging(Linear):
    """Returns lists of Python's integers, as decoders do."""

    def forward(self, x: Tensor) -> Any:
        return [[int(one)] for one in self.inner(x).argmax(-1)]


def build_tagging() -> tuple[nn.Module, Inputs]:
    return Tagging().eval(), inputs


class Silent(Linear):
    def forward(self, x: Tensor) -> None:
        self.inner(x)


def build_silent() -> tuple[nn.Module, Inputs]:
    return Silent().eval(), inputs


class Wrong(Linear):
    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.ones(WIDTH + 1, 1)


def build_wrong() -> tuple[nn.Module, Inputs]:
    return Wrong().eval(), inputs


def build_growing() -> tuple[nn.Module, Inputs]:
    """Its inputs have another shape for another seed."""

    def growing(batch: int, seed: int) -> tuple[Tensor]:
        return (torch.randn(batch, 1 + seed, WIDTH),)

    return Linear().eval(), growing


class Plain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.relu()


class Crosswise(Linear):
    """Its batch is the second dimension of a tensor in a tree."""

    def forward(self, scale: float, trees: dict[str, list[Tensor]]) -> Any:
        return self.inner(trees["both"][0]) * scale + trees["both"][1]


def build_crosswise() -> Any:
    def crosswise(batch: int, seed: int) -> Any:
        return 2.0, {"both": [torch.randn(3, batch, WIDTH), torch.randn(batch, WIDTH)]}

    return SimpleNamespace(model=Crosswise().eval(), inputs=crosswise, batch_dimension=1)


class Sized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu()).sum(1)


def build_sized() -> Any:
    """Its sequences have 3 or 5 places."""

    def sequences(batch: int, seed: int, size: int) -> tuple[Tensor]:
        return (torch.randn(batch, size, WIDTH),)

    return SimpleNamespace(model=Sized().eval(), inputs=sequences, sizes=(3, 5))


class Locked(Linear):
    """Holds what cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = Lock()


def build_locked() -> tuple[nn.Module, Inputs]:
    return Locked().eval(), inputs


def build_plain() -> tuple[nn.Module, Inputs]:
    return Plain().eval(), inputs
