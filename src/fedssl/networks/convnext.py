"""A small ConvNeXt in plain PyTorch: depthwise 7x7 convolutions and LayerNorm, cheap on CPUs."""

import torch.nn.functional as F
from torch import Tensor, nn

from fedssl.core.settings import Count

DEPTHS = (2, 2, 6, 2)
LAYER_SCALE = 0.1  # at which a block begins to count; ImageNet networks begin at 1e-6 and train for 300 epochs


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of N x C x H x W; channels-last memory is not copied."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Mlp(nn.Module):
    """Linear → GELU → Linear over channels, four times as wide inside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """x + gamma · mlp(norm(depthwise 7x7(x)))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv_dw = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.mlp = Mlp(width)
        self.gamma = nn.Parameter(LAYER_SCALE * self.norm.weight.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        made = self.mlp(self.norm(self.conv_dw(x).permute(0, 2, 3, 1)))  # N x H x W x C
        return x + (made * self.gamma).permute(0, 3, 1, 2)  # type: ignore[no-any-return]


class Stage(nn.Module):
    """Halves the image, unless it is the first stage, then some blocks."""

    def __init__(self, in_width: int, width: int, depth: int) -> None:
        super().__init__()
        halve = nn.Sequential(ChannelNorm(in_width, eps=1e-6), nn.Conv2d(in_width, width, 2, 2))
        self.downsample = nn.Identity() if in_width == width else halve
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(self.downsample(x))  # type: ignore[no-any-return]


class Head(nn.Module):
    """The normalised mean over positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.mean(dim=(2, 3)))  # type: ignore[no-any-return]


class ConvNeXt(nn.Module):
    """Stem of whole patches, four stages, each twice as wide as the one before, mean, norm; names as in timm."""

    def __init__(self, channels: int, width: int, patch_size: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(channels, width, patch_size, patch_size), ChannelNorm(width, eps=1e-6))
        widths = [width * 2**number for number in range(len(DEPTHS))]
        before = [width, *widths]
        self.stages = nn.Sequential(*(Stage(*sizes) for sizes in zip(before, widths, DEPTHS, strict=False)))
        self.head = Head(widths[-1])
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(images)))  # type: ignore[no-any-return]


def convnext_atto(channels: int, *, width: Count = 40, patch_size: Count = 2) -> ConvNeXt:
    """ConvNeXt-Atto with a stem of 2x2 for small images: no BatchNorm, for CPUs (3.37 M parameters at width 40)."""
    return ConvNeXt(channels, width, patch_size)
