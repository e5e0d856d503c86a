"""A small recommender in the manner of DLRM. Which mode should it run in, at which batch size?

    launchbound run examples/recommender.py:build --batch-sizes 1,8,64

Nothing of launchbound is imported here: what follows is a module of PyTorch, and at the end `build`, a
function without arguments that returns the module and a function that makes inputs for it.
"""

import torch
from torch import Tensor, nn

DENSE = 13  # numbers per example
CATEGORIES = (2000, 500, 100, 20)  # values of each categorical feature
VALUES = 3  # of each categorical feature per example, such as the last three pages that were seen
WIDTH = 32


class Recommender(nn.Module):
    """Products of all pairs of the dense features' vector and the embeddings decide."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(count, WIDTH, mode="sum") for count in CATEGORIES)
        self.bottom = nn.Sequential(nn.Linear(DENSE, 64), nn.ReLU(), nn.Linear(64, WIDTH), nn.ReLU())
        vectors = len(CATEGORIES) + 1
        # A buffer goes to the device with the module. A tensor that `forward` makes would stay on the CPU.
        self.register_buffer("pairs", torch.triu_indices(vectors, vectors, offset=1))
        self.top = nn.Sequential(
            nn.Linear(WIDTH + vectors * (vectors - 1) // 2, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        """dense: float [batch, DENSE]; categories: int64 [batch, len(CATEGORIES), VALUES] → float [batch]"""
        below = self.bottom(dense)
        vectors = [below, *(table(categories[:, number]) for number, table in enumerate(self.tables))]
        stacked = torch.stack(vectors, dim=1)
        products = stacked @ stacked.transpose(1, 2)
        chosen = products[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([below, chosen], dim=1)).squeeze(1)


def build() -> tuple:
    """The module, in evaluation mode, and what makes its inputs. Load a checkpoint here if there is one."""
    model = Recommender().eval()

    def inputs(batch: int, seed: int) -> dict[str, Tensor]:
        """By argument's name. torch is seeded with `seed` already: the same numbers for the same seed."""
        categories = [torch.randint(count, (batch, VALUES)) for count in CATEGORIES]
        return {"dense": torch.randn(batch, DENSE), "categories": torch.stack(categories, dim=1)}

    return model, inputs
