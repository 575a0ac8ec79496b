"""MoCo v2: find the key of an image among it and a queue of earlier keys, made by a momentum encoder."""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedssl.core.settings import Count, Fraction, Positive
from fedssl.methods.base import SiameseMethod
from fedssl.methods.losses import info_nce
from fedssl.networks.heads import Encoder, HeadSizes, mlp


class MoCo(SiameseMethod):
    """Contrastive, with a queue of negatives and a momentum key encoder (He et al., 2020; Chen et al., 2020).

    No shuffled BatchNorm: that trick needs several devices (docs/deviations.md).
    Needs: two encoders and the queue in memory; small batches do. Leaves the client: the online encoder.
    """

    departs = (
        'heads v1 linear, v2 MLP, 128 outputs (authors), `method.head = "paper"` gives the 4096/2048 MLP; between '
        "rounds the key encoder is reset and the queue kept (authors reset both; `method.queue_between_rounds`); "
        "no shuffled BatchNorm, which needs several devices; v1's augmentation is SimCLR's with jitter (0.4, 0.4, "
        "0.4, 0.1), its rate constant"
    )

    queue: Tensor
    queue_end: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        feature_size: int,
        heads: HeadSizes,
        *,
        head: Literal["linear", "mlp", "paper"] = "mlp",  # authors: v1 linear, v2 mlp; paper: the 4096/2048 MLP
        out_dim: Count = 128,
        temperature: Positive = 0.2,
        momentum: Fraction = 0.99,
        queue_size: Count = 4096,
        key_encoder: Literal["reset", "keep"] = "reset",  # at the start of a round; the authors reset both
        queue_between_rounds: Literal["reset", "keep"] = "keep",
    ) -> None:
        sizes = heads if head == "paper" else HeadSizes(feature_size, out_dim)
        projector = nn.Linear(feature_size, out_dim) if head == "linear" else mlp(feature_size, sizes)
        super().__init__(Encoder(backbone, projector), has_target=True)
        self.temperature, self.momentum = temperature, momentum
        self.key_encoder, self.queue_between_rounds = key_encoder, queue_between_rounds
        self.register_buffer("queue", F.normalize(torch.randn(queue_size, sizes.out), dim=1))  # Q x d
        self.register_buffer("queue_end", torch.zeros((), dtype=torch.int64))
        self.first_queue = self.queue.clone()

    def start_round(self) -> None:
        assert self.target_encoder is not None
        if self.key_encoder == "reset":
            self.target_encoder.load_state_dict(self.online_encoder.state_dict())
        if self.queue_between_rounds == "reset":
            self.queue.copy_(self.first_queue)
            self.queue_end.zero_()

    def loss(self, views: Sequence[Tensor]) -> Tensor:
        view_1, view_2 = views  # B x C x H x W
        assert self.target_encoder is not None
        q1 = F.normalize(self.online_encoder(view_1), dim=1)  # B x d
        q2 = F.normalize(self.online_encoder(view_2), dim=1)
        with torch.no_grad():
            k1 = F.normalize(self.target_encoder(view_1), dim=1)  # B x d
            k2 = F.normalize(self.target_encoder(view_2), dim=1)
        queue = self.queue.clone()  # the backward pass needs the negatives as they were
        self._enqueue(torch.cat([k1, k2]))  # 2B x d
        return info_nce(q1, k2, queue, self.temperature) + info_nce(q2, k1, queue, self.temperature)

    @torch.no_grad()
    def _enqueue(self, keys: Tensor) -> None:
        size = len(self.queue)
        keys = keys[-size:]  # a queue smaller than a batch keeps the newest
        places = (self.queue_end + torch.arange(len(keys), device=keys.device)) % size
        self.queue.index_copy_(0, places, keys.to(self.queue.dtype))  # keys may be of lower precision
        self.queue_end.copy_((self.queue_end + len(keys)) % size)

    def after_step(self) -> None:
        self.move_target(self.momentum)
