"""Barlow Twins: the cross-correlation of two views' projections should be the identity."""

from collections.abc import Sequence

from torch import Tensor, nn

from fedssl.core.settings import NonNegative
from fedssl.methods.base import SiameseMethod
from fedssl.methods.losses import barlow_loss
from fedssl.networks.heads import Encoder, HeadSizes, mlp


class BarlowTwins(SiameseMethod):
    """Redundancy reduction, both views through the same encoder (Zbontar et al., 2021).

    Needs: a wide projector (the paper's 8192; three layers), a batch that correlations can be estimated from.
    Leaves the client: the encoder.
    """

    departs = (
        "three layers of `network.head_hidden` and `head_out` instead of 8192, with biases; the run's SGD instead "
        "of LARS"
    )

    def __init__(
        self,
        backbone: nn.Module,
        feature_size: int,
        heads: HeadSizes,
        *,
        redundancy: NonNegative = 0.0051,  # the paper's lambda: weight of what is beside the diagonal
    ) -> None:
        super().__init__(Encoder(backbone, mlp(feature_size, heads, layers=3)))
        self.redundancy = redundancy

    def loss(self, views: Sequence[Tensor]) -> Tensor:
        z1, z2 = map(self.online_encoder, views)  # B x C x H x W -> B x d
        return barlow_loss(z1, z2, self.redundancy)
