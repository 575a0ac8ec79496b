"""FedX: contrastive learning, and relations between images, of the client's own network and of the global one."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Self

import torch
from torch import Tensor, nn

from fedssl.core.settings import Positive
from fedssl.methods.base import ClientRound, SiameseMethod
from fedssl.methods.losses import nt_xent, relational_loss
from fedssl.networks.heads import Encoder, HeadSizes, mlp


class FedX(SiameseMethod):
    """NT-Xent and relations of the two views, + both of predictions against the received global net (Han et al., 2022).

    The global encoder is kept frozen for the round and gives no gradient. Needs: batches of different images, memory
    for one more encoder. Leaves the client: encoder and predictor.
    """

    departs = (
        "relations are to the other images of the batch, theirs to a second batch; each view in its own forward; "
        "Jensen-Shannon as printed, their code has its arguments the other way round"
    )

    def __init__(
        self,
        backbone: nn.Module,
        feature_size: int,
        heads: HeadSizes,
        *,
        temperature: Positive = 0.1,
    ) -> None:
        super().__init__(Encoder(backbone, mlp(feature_size, heads)), mlp(heads.out, heads))
        self.global_encoder = deepcopy(self.online_encoder).requires_grad_(False)
        self.temperature = temperature

    def prepare(self, at: ClientRound) -> None:
        at.encoder.load_into(self.global_encoder)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.global_encoder.eval()  # as it was sent: its statistics do not move with this client's images
        return self

    def loss(self, views: Sequence[Tensor]) -> Tensor:
        view_1, view_2 = views  # B x C x H x W
        z1, z2 = self.online_encoder(view_1), self.online_encoder(view_2)  # B x d
        p1, p2 = self.predictor(z1), self.predictor(z2)
        with torch.no_grad():
            g1, g2 = self.global_encoder(view_1), self.global_encoder(view_2)
        own = nt_xent(z1, z2, self.temperature) + relational_loss(z1, z2, z1, self.temperature)
        return own + nt_xent(p1, g2, self.temperature) + relational_loss(p1, p2, g1, self.temperature)
