"""A small vision transformer. What does compiling it gain, and is the result still the same?

    launchbound run examples/vision_transformer.py:build --batch-sizes 1,4 --dtype bfloat16

`build` at the end is all that launchbound needs. A tuple of inputs has the positional arguments.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

IMAGE, PATCH, WIDTH, HEADS, LAYERS, CLASSES = 64, 8, 96, 4, 3, 10


class Block(nn.Module):
    """Attention among the patches, then a small network on each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, patches, _ = x.shape
        heads = self.qkv(self.before_attention(x)).view(batch, patches, 3, HEADS, WIDTH // HEADS)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, patches, WIDTH)
        x = x + self.out(attended)
        return x + self.mlp(x)


class VisionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, kernel_size=PATCH, stride=PATCH)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (IMAGE // PATCH) ** 2 + 1, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES))

    def forward(self, images: Tensor) -> Tensor:
        """images: float [batch, 3, IMAGE, IMAGE] → logits [batch, CLASSES]"""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(images), -1, -1), patches], dim=1)
        return self.head(self.blocks(tokens + self.positions)[:, 0])


def build() -> tuple:
    return VisionTransformer().eval(), lambda batch, seed: (torch.randn(batch, 3, IMAGE, IMAGE),)
