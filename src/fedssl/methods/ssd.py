"""SSD: alignment and uniformity, each client's embeddings drawn towards dimensions of its own."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from fedssl.core.errors import FedsslError
from fedssl.core.settings import NonNegative, Positive
from fedssl.methods.base import ClientRound, SiameseMethod
from fedssl.methods.losses import byol_loss, kl_divergence, ssd_separation, ssd_separation_authors, uniformity
from fedssl.networks.heads import Encoder, HeadSizes, mlp


class SSD(SiameseMethod):
    """Align + uniform + ‖z − sg(z ⊙ d_k)‖² + KL(softmax h ‖ softmax z), weighted (Fang et al., 2025).

    d_k is `scale` on client k's own floor(d / K) dimensions and 1 elsewhere. z is normalised but in KL, where h are the
    backbone's features: the projector's width is theirs. Needs: batches of different images. Leaves the client: the
    encoder.
    """

    departs = (
        'as printed, or `method.formulas = "authors"`; dimensions are dealt out in the order of clients, theirs '
        "are directions of a random basis; the projector is as wide as the features"
    )

    def __init__(
        self,
        backbone: nn.Module,
        feature_size: int,
        heads: HeadSizes,
        *,
        uniform_weight: NonNegative = 1.0,
        separation_weight: NonNegative = 1.0,
        distillation_weight: NonNegative = 0.1,
        scale: Positive = 10.0,
        sharpness: Positive = 2.0,  # the t of uniformity
        formulas: Literal["paper", "authors"] = "paper",  # authors: as their code has separation and distillation
    ) -> None:
        super().__init__(Encoder(backbone, mlp(feature_size, HeadSizes(heads.hidden, feature_size))))
        self.uniform_weight, self.sharpness, self.scale = uniform_weight, sharpness, scale
        self.separation_weight, self.distillation_weight = separation_weight, distillation_weight
        self.as_paper = formulas == "paper"
        self.scaling = torch.ones(feature_size)  # d_k

    def check(self, num_clients: int) -> None:
        if num_clients > len(self.scaling):
            raise FedsslError(
                f"method.name: ssd gives each client dimensions of its own, and {num_clients} clients cannot share "
                f"{len(self.scaling)}: take a wider network or another method"
            )

    def prepare(self, at: ClientRound) -> None:
        width = len(self.scaling) // at.num_clients
        self.scaling = torch.ones(len(self.scaling))
        self.scaling[at.client_id * width : (at.client_id + 1) * width] = self.scale

    def loss(self, views: Sequence[Tensor]) -> Tensor:
        h1, h2 = map(self.online_encoder.backbone, views)  # B x d
        z1, z2 = self.online_encoder.projector(h1), self.online_encoder.projector(h2)  # B x d
        return byol_loss(z1, z2) + (self._of_view(h1, z1) + self._of_view(h2, z2)) / 2  # byol_loss: alignment

    def _of_view(self, h: Tensor, z: Tensor) -> Tensor:
        scaling = self.scaling.to(z.device)
        if self.as_paper:
            separation, distillation = ssd_separation(z, scaling), kl_divergence(h, z)
        else:  # the other way round, at temperature 0.5
            separation, distillation = ssd_separation_authors(z, scaling), kl_divergence(2 * z, 2 * h)
        spread = self.uniform_weight * uniformity(z, self.sharpness)
        return spread + self.separation_weight * separation + self.distillation_weight * distillation
