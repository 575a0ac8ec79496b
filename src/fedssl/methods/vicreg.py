"""VICReg: views alike, dimensions that vary and that are not correlated; no negatives, no target."""

from collections.abc import Sequence

from torch import Tensor, nn

from fedssl.core.settings import NonNegative
from fedssl.methods.base import SiameseMethod
from fedssl.methods.losses import vicreg_loss
from fedssl.networks.heads import Encoder, HeadSizes, mlp


class VICReg(SiameseMethod):
    """Variance, invariance and covariance of projections, both views through the same encoder (Bardes et al., 2022).

    Needs: a wide projector (the paper's 8192; three layers), a batch that covariances can be estimated from.
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
        invariance: NonNegative = 25.0,
        variance: NonNegative = 25.0,
        covariance: NonNegative = 1.0,
    ) -> None:
        super().__init__(Encoder(backbone, mlp(feature_size, heads, layers=3)))
        self.invariance, self.variance, self.covariance = invariance, variance, covariance

    def loss(self, views: Sequence[Tensor]) -> Tensor:
        z1, z2 = map(self.online_encoder, views)  # B x C x H x W -> B x d
        return vicreg_loss(z1, z2, self.invariance, self.variance, self.covariance)
