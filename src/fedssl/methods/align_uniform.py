"""Alignment and uniformity: views close together on the sphere, images spread over it."""

from collections.abc import Sequence

from torch import Tensor, nn

from fedssl.core.settings import NonNegative, Positive
from fedssl.methods.base import SiameseMethod
from fedssl.methods.losses import byol_loss, uniformity
from fedssl.networks.heads import Encoder, HeadSizes, mlp


class AlignUniform(SiameseMethod):
    """E‖z1 − z2‖² + log E exp(−t‖z_i − z_j‖²) of normalised projections (Wang & Isola, 2020).

    Needs: batches of different images, as all contrastive methods. Leaves the client: the encoder.
    """

    departs = "uniformity of each view by itself, averaged, as in the code of its paper"

    def __init__(
        self,
        backbone: nn.Module,
        feature_size: int,
        heads: HeadSizes,
        *,
        uniform_weight: NonNegative = 1.0,
        sharpness: Positive = 2.0,  # the paper's t
    ) -> None:
        super().__init__(Encoder(backbone, mlp(feature_size, heads)))
        self.uniform_weight, self.sharpness = uniform_weight, sharpness

    def loss(self, views: Sequence[Tensor]) -> Tensor:
        z1, z2 = map(self.online_encoder, views)  # B x C x H x W -> B x d
        spread = (uniformity(z1, self.sharpness) + uniformity(z2, self.sharpness)) / 2  # each view by itself
        return byol_loss(z1, z2) + self.uniform_weight * spread  # byol_loss is ‖·‖² of normalised vectors
