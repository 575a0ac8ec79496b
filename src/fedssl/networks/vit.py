"""A small vision transformer in plain PyTorch: patches to tokens, tokens through blocks, their mean as features."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedssl.core.errors import FedsslError
from fedssl.core.settings import Count

HEAD_WIDTH = 64
MLP_RATIO = 4


class Attention(nn.Module):
    """Multi-head self-attention: every token looks at every token."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        count, length, width = x.shape
        qkv = self.qkv(x).view(count, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each N x heads x L x d/heads
        seen = F.scaled_dot_product_attention(query, key, value)
        return self.proj(seen.transpose(1, 2).reshape(count, length, width))  # type: ignore[no-any-return]


class Mlp(nn.Module):
    """Linear → GELU → Linear, four times as wide inside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, MLP_RATIO * width)
        self.fc2 = nn.Linear(MLP_RATIO * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); N x L x d to N x L x d."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = Mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class PatchEmbed(nn.Module):
    """Each square patch to one token; pixels beyond the last whole patch are left out."""

    def __init__(self, channels: int, width: int, patch_size: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(channels, width, patch_size, patch_size)

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(images).permute(0, 2, 3, 1)  # type: ignore[no-any-return]  # N x rows x columns x d


class VisionTransformer(nn.Module):
    """LayerNorm only, no class token, fixed positions (sines and cosines), so images of any size; timm's names.

    A method that masks patches uses its two halves. The mean of all tokens is what `forward` gives:

    >>> network = VisionTransformer(3, width=64, depth=1, patch_size=4)
    >>> patches = network.patches(torch.rand(2, 3, 8, 8))  # N x L x d, row by row, positions added
    >>> network.tokens(patches[:, [0, 3]]).shape  # any of them can be dropped
    torch.Size([2, 2, 64])
    """

    def __init__(self, channels: int, width: int, depth: int, patch_size: int) -> None:
        super().__init__()
        if width % (4 if width < HEAD_WIDTH else HEAD_WIDTH):
            raise FedsslError(f"network.width: {width}: give a multiple of {HEAD_WIDTH}, or below that one of 4")
        self.width, self.patch_size = width, patch_size
        self.patch_embed = PatchEmbed(channels, width, patch_size)
        self.blocks = nn.ModuleList(Block(width, max(1, width // HEAD_WIDTH)) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                nn.init.xavier_uniform_(module.weight.flatten(1))  # as masked autoencoders begin
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def grid(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of patches."""
        return image_size[0] // self.patch_size, image_size[1] // self.patch_size

    def patches(self, images: Tensor) -> Tensor:
        """N x L x d: one token for each patch, row by row, with its position."""
        embedded = self.patch_embed(images)
        places = positions(embedded.shape[1], embedded.shape[2], self.width).to(embedded)
        return (embedded + places).flatten(1, 2)  # type: ignore[no-any-return]

    def tokens(self, patches: Tensor) -> Tensor:
        """N x L x d: what the blocks make of the patches, all or some, in any order."""
        for block in self.blocks:
            patches = block(patches)
        return self.norm(patches)  # type: ignore[no-any-return]

    def forward(self, images: Tensor) -> Tensor:
        return self.tokens(self.patches(images)).mean(dim=1)


def positions(rows: int, columns: int, width: int) -> Tensor:
    """rows x columns x width: half of it sines and cosines of the column, half of the row, at width / 4 frequencies."""
    frequencies = 10_000.0 ** (-torch.arange(width // 4) / (width // 4))
    row, column = (torch.arange(length)[:, None] * frequencies for length in (rows, columns))
    of_row, of_column = (torch.cat([angles.sin(), angles.cos()], dim=1) for angles in (row, column))
    return torch.cat([of_column.expand(rows, -1, -1), of_row[:, None].expand(-1, columns, -1)], dim=2)


def vit_tiny(channels: int, *, width: Count = 192, depth: Count = 12, patch_size: Count = 4) -> VisionTransformer:
    """ViT-Tiny for 32 to 64 pixels: no BatchNorm, mean of all tokens (5.35 M parameters at width 192)."""
    return VisionTransformer(channels, width, depth, patch_size)
