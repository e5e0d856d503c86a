"""Convolutions: a residual network, and one level of the U-Net of a diffusion model."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Residual(nn.Module):
    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, out, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(out) for _ in range(2))
        self.shortcut = nn.Conv2d(width, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        found = F.relu(self.norms[0](self.first(x)), inplace=True)
        return F.relu(self.norms[1](self.second(found)) + self.shortcut(x), inplace=True)


def build_resnet() -> tuple:
    stem = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)]
    blocks = [Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2)]
    model = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    return model.eval(), lambda batch, seed: (torch.randn(batch, 3, 32, 32),)


class UnetLevel(nn.Module):
    """Down, with the time of the diffusion step added, and up again beside what came in."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU())
        self.down = nn.Conv2d(4, width, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(8, width)
        self.up = nn.ConvTranspose2d(width, width, 2, stride=2)
        self.out = nn.Conv2d(width + 4, 4, 3, padding=1)

    def forward(self, sample: Tensor, timestep: Tensor) -> Tensor:
        rates = torch.exp(
            -math.log(1e4) * torch.arange(self.width // 2, device=sample.device) / (self.width // 2)
        )
        angles = timestep[:, None].to(sample.dtype) * rates.to(sample.dtype)
        time = self.time(torch.cat([angles.sin(), angles.cos()], dim=-1))
        inner = F.silu(self.norm(self.down(sample)) + time[:, :, None, None])
        return self.out(torch.cat([self.up(inner), sample], dim=1))


def build_unet() -> tuple:
    def inputs(batch: int, seed: int) -> dict[str, Tensor]:
        return {"sample": torch.randn(batch, 4, 16, 16), "timestep": torch.randint(1000, (batch,))}

    return UnetLevel().eval(), inputs
