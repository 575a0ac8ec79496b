"""SimSiam: predict the other view with one encoder, a predictor and a stop-gradient."""

from collections.abc import Sequence

from torch import Tensor, nn

from fedssl.core.view_groups import ViewGroup
from fedssl.methods.base import SiameseMethod, Views
from fedssl.methods.losses import mean_of_others, mean_over_views, simsiam_loss
from fedssl.networks.heads import Encoder, HeadSizes, mlp


class SimSiam(SiameseMethod):
    """Non-contrastive, all views through the same encoder (Chen & He, 2021).

    Of more than two views each predicts the mean of the others' projections (FastSiam, Pototzky et al., 2022).
    Needs: heads with BatchNorm; small batches do. Leaves the client: encoder and predictor.
    """

    departs = "heads are the two-layer MLP of the paper's appendix, not SimSiam's own"

    def __init__(
        self,
        backbone: nn.Module,
        feature_size: int,
        heads: HeadSizes,
        *,
        views: Views = 2,
        predictor: bool = True,
        stop_gradient: bool = True,
    ) -> None:
        super().__init__(Encoder(backbone, mlp(feature_size, heads)), mlp(heads.out, heads) if predictor else None)
        self.view_groups = (ViewGroup(views),)
        self.stop_gradient = stop_gradient

    def loss(self, views: Sequence[Tensor]) -> Tensor:  # V times B x C x H x W
        projections = [self.online_encoder(view) for view in views]  # V times B x d
        predictions = [self.predictor(z) for z in projections]
        if self.stop_gradient:
            projections = [z.detach() for z in projections]
        return mean_over_views(simsiam_loss, predictions, mean_of_others(projections))
