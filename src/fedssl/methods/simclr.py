"""SimCLR: find the other view of an image among all projections of the batch."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedssl.core.settings import Positive
from fedssl.methods.base import SiameseMethod
from fedssl.methods.losses import nt_xent
from fedssl.networks.heads import Encoder, HeadSizes, mlp


class SimCLR(SiameseMethod):
    """Contrastive, no predictor, both views through the same encoder (Chen et al., 2020).

    Needs: batches of different images, 64 or more. Leaves the client: the encoder.
    """

    departs = (
        "`+fedsimclr` passes one batch of 2B, so that BatchNorm sees both views (`method.joint_batch`, authors), "
        "otherwise, and at the scale `cpu`, one view at a time; temperature 0.07 (authors)"
    )

    def __init__(
        self,
        backbone: nn.Module,
        feature_size: int,
        heads: HeadSizes,
        *,
        temperature: Positive = 0.07,  # the authors' code; the paper is silent
        joint_batch: bool = False,  # both views in one forward: BatchNorm sees 2B images, as in the authors' code
    ) -> None:
        super().__init__(Encoder(backbone, mlp(feature_size, heads)))
        self.temperature, self.joint_batch = temperature, joint_batch

    def loss(self, views: Sequence[Tensor]) -> Tensor:
        if self.joint_batch:
            z1, z2 = self.online_encoder(torch.cat([*views])).chunk(2)  # 2B x C x H x W -> B x d
        else:
            z1, z2 = map(self.online_encoder, views)  # B x C x H x W -> B x d
        return nt_xent(z1, z2, self.temperature)
