"""The MLP that is projector or predictor, two layers in the paper, and the encoder made of backbone and projector."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class HeadSizes:
    """Widths of the MLP heads; the paper uses 4096 and 2048."""

    hidden: int = 4096
    out: int = 2048


def mlp(in_features: int, sizes: HeadSizes, layers: int = 2) -> nn.Sequential:
    """Linear → BatchNorm → ReLU → Linear; with more layers the first three come as many more times."""
    modules: list[nn.Module] = []
    for _ in range(layers - 1):
        modules += [nn.Linear(in_features, sizes.hidden), nn.BatchNorm1d(sizes.hidden), nn.ReLU(inplace=True)]
        in_features = sizes.hidden
    return nn.Sequential(*modules, nn.Linear(in_features, sizes.out))


class PrototypeHead(nn.Module):
    """DINO's: three layers with GELU and without BatchNorm, then the cosine to each of K prototypes.

    That is a weight-normed last layer whose lengths stay 1. While they are `frozen`, the prototypes' gradient is 0.
    """

    def __init__(self, in_features: int, sizes: HeadSizes, prototypes: int) -> None:
        super().__init__()
        first, second = nn.Linear(in_features, sizes.hidden), nn.Linear(sizes.hidden, sizes.hidden)
        self.layers = nn.Sequential(first, nn.GELU(), second, nn.GELU(), nn.Linear(sizes.hidden, sizes.out))
        self.prototypes = nn.Linear(sizes.out, prototypes, bias=False)
        self.frozen = False

    def forward(self, features: Tensor) -> Tensor:
        weight = self.prototypes.weight  # K x d
        if self.frozen:
            weight = weight.detach() + 0 * weight  # 0, not None: fused SGD cannot take in a parameter later
        return F.linear(F.normalize(self.layers(features), dim=1), F.normalize(weight, dim=1))  # N x K


class Encoder(nn.Module):
    """W = backbone + projector: images to projections; evaluation uses the backbone alone."""

    def __init__(self, backbone: nn.Module, projector: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.projector = projector

    def forward(self, images: Tensor) -> Tensor:
        projections: Tensor = self.projector(self.backbone(images))
        return projections
