"""Plain layers: a perceptron, a recurrent network, and messages along the edges of a graph."""

import torch
from torch import Tensor, nn

WIDTH, NODES, EDGES = 64, 50, 200


def build_mlp() -> tuple:
    layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    return nn.Sequential(*layers).eval(), lambda batch, seed: (torch.randn(batch, WIDTH),)


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.head = nn.Linear(WIDTH, 100)

    def forward(self, tokens: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        found, state = self.lstm(self.embedding(tokens))
        return self.head(found[:, -1]), state


def build_lstm() -> tuple:
    return Lstm().eval(), lambda batch, seed: torch.randint(100, (batch, 12))


class Graph(nn.Module):
    """Two rounds of messages: each node adds what its neighbours send, scaled by the edges' softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("edges", torch.randint(NODES, (2, EDGES)))
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.scores = nn.Linear(2 * WIDTH, 1)

    def forward(self, nodes: Tensor) -> dict[str, Tensor]:
        source, target = self.edges
        for layer in self.layers:
            sent, at = layer(nodes)[:, source], nodes[:, target]
            weights = self.scores(torch.cat([sent, at], dim=-1)).exp()
            scaled = sent * weights
            sums = weights.new_zeros(*nodes.shape[:2], 1).index_add(1, target, weights)
            received = scaled.new_zeros(nodes.shape).index_add(1, target, scaled)
            nodes = torch.relu(nodes + received / (sums + 1e-6))
        return {"nodes": nodes, "most": nodes.sum(-1).argmax(-1)}


def build_graph() -> tuple:
    return Graph().eval(), lambda batch, seed: {"nodes": torch.randn(batch, NODES, WIDTH)}
