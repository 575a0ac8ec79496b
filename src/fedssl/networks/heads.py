"""The paper's two-layer MLP, which is both projector and predictor, and the encoder made of backbone and projector."""

from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class HeadSizes:
    """Widths of the MLP heads; the paper uses 4096 and 2048."""

    hidden: int = 4096
    out: int = 2048


def mlp(in_features: int, sizes: HeadSizes) -> nn.Sequential:
    """Linear → BatchNorm → ReLU → Linear."""
    return nn.Sequential(
        nn.Linear(in_features, sizes.hidden),
        nn.BatchNorm1d(sizes.hidden),
        nn.ReLU(inplace=True),
        nn.Linear(sizes.hidden, sizes.out),
    )


class Encoder(nn.Module):
    """W = backbone + projector: images to projections; evaluation uses the backbone alone."""

    def __init__(self, backbone: nn.Module, projector: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.projector = projector

    def forward(self, images: Tensor) -> Tensor:
        projections: Tensor = self.projector(self.backbone(images))
        return projections
