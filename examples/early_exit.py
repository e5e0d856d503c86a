"""A module with a branch that depends on its data, which `torch.compile` cannot put into one graph.

    launchbound run examples/early_exit.py:build --batch-sizes 1,16

The modes that compile run it in pieces: the report says how many graph breaks there are, at which line, and
whether compiling pays off all the same.
"""

import torch
from torch import Tensor, nn

WIDTH, CLASSES, SURE = 256, 10, 0.9


class EarlyExit(nn.Module):
    """The second half runs only where the first is not sure of all examples of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(
            *(layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU()))
        )
        self.second = nn.Sequential(
            *(layer for _ in range(9) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU()))
        )
        self.early, self.late = nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """x: float [batch, WIDTH] → probabilities [batch, CLASSES]"""
        x = self.first(x)
        found = self.early(x).softmax(-1)
        if bool((found.amax(-1) > SURE).all()):  # Python must know the value: the graph ends here
            return found
        return self.late(self.second(x)).softmax(-1)


def build() -> tuple:
    return EarlyExit().eval(), lambda batch, seed: torch.randn(batch, WIDTH)
