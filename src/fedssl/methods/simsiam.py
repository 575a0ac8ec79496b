"""SimSiam: predict the other view with one encoder, a predictor and a stop-gradient."""

from collections.abc import Sequence

from torch import Tensor, nn

from fedssl.methods.base import SiameseMethod
from fedssl.methods.losses import simsiam_loss
from fedssl.networks.heads import Encoder, HeadSizes, mlp


class SimSiam(SiameseMethod):
    """Non-contrastive, both views through the same encoder (Chen & He, 2021)."""

    def __init__(
        self,
        backbone: nn.Module,
        feature_size: int,
        heads: HeadSizes,
        *,
        predictor: bool = True,
        stop_gradient: bool = True,
    ) -> None:
        super().__init__(Encoder(backbone, mlp(feature_size, heads)), mlp(heads.out, heads) if predictor else None)
        self.stop_gradient = stop_gradient

    def loss(self, views: Sequence[Tensor]) -> Tensor:
        view_1, view_2 = views  # B x C x H x W
        z1, z2 = self.online_encoder(view_1), self.online_encoder(view_2)  # B x d
        p1, p2 = self.predictor(z1), self.predictor(z2)  # B x d
        if self.stop_gradient:
            z1, z2 = z1.detach(), z2.detach()
        return 0.5 * simsiam_loss(p1, z2) + 0.5 * simsiam_loss(p2, z1)
