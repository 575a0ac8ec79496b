"""The decoder of a masked autoencoder: from the tokens of some patches to the pixels of the others."""

import torch
from torch import Tensor, nn

from fedssl.core.errors import FedsslError
from fedssl.networks.vit import Block, positions

HEAD_WIDTH = 32


class PatchDecoder(nn.Module):
    """Blocks over all places of an image: where a patch was masked stands one learned token."""

    def __init__(self, in_features: int, width: int, depth: int, patch_pixels: int) -> None:
        super().__init__()
        if width % (4 if width < HEAD_WIDTH else HEAD_WIDTH):
            raise FedsslError(f"method.decoder_width: {width}: give a multiple of {HEAD_WIDTH}, or below that one of 4")
        self.embed = nn.Linear(in_features, width)
        self.masked = nn.Parameter(0.02 * torch.randn(width))
        self.blocks = nn.ModuleList(Block(width, max(1, width // HEAD_WIDTH)) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.pixels = nn.Linear(width, patch_pixels)

    def forward(self, tokens: Tensor, order: Tensor, grid: tuple[int, int]) -> Tensor:
        """Pixels of the masked patches, N x masked x P; `order` has the places of `tokens` first, then the masked."""
        count, kept, width = len(tokens), tokens.shape[1], len(self.masked)
        known = self.embed(tokens)  # N x kept x w
        unknown = self.masked.to(known.dtype).expand(count, order.shape[1] - kept, width)
        places = positions(*grid, width).flatten(0, 1).to(known)  # L x w
        x = torch.cat([known, unknown], dim=1) + places[order]  # N x L x w
        for block in self.blocks:
            x = block(x)
        return self.pixels(self.norm(x[:, kept:]))  # type: ignore[no-any-return]
