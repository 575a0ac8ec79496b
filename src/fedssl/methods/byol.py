"""BYOL: predict what a slowly moving target encoder makes of the other view."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from fedssl.core.settings import Fraction
from fedssl.core.view_groups import ViewGroup
from fedssl.methods.base import ClientRound, SiameseMethod, Views
from fedssl.methods.losses import byol_loss, mean_of_others, mean_over_views
from fedssl.networks.heads import Encoder, HeadSizes, mlp


class BYOL(SiameseMethod):
    """Non-contrastive, the target encoder is an EMA of the online encoder (Grill et al., 2020).

    Of more than two views each predicts the mean of the others' targets (FastSiam, Pototzky et al., 2022).
    Needs: heads with BatchNorm; small batches do. Leaves the client: online encoder and predictor.
    """

    departs = (
        "the two directions of the loss are summed; in a client's first round the target is a copy of the online "
        "encoder (authors: one object); without stop-gradient the target is trained by backpropagation too, as "
        'printed; `method.without_stop_gradient = "authors"` leaves it out of the optimizer, which equals '
        "stop-gradient on, bit for bit"
    )

    def __init__(
        self,
        backbone: nn.Module,
        feature_size: int,
        heads: HeadSizes,
        *,
        views: Views = 2,
        momentum: Fraction = 0.99,
        predictor: bool = True,
        stop_gradient: bool = True,
        ema: bool = True,
        without_stop_gradient: Literal["paper", "authors"] = "paper",
        momentum_schedule: Literal["constant", "cosine"] = "constant",  # cosine: to 1 over the rounds, as BYOL has it
    ) -> None:
        encoder = Encoder(backbone, mlp(feature_size, heads))
        super().__init__(encoder, mlp(heads.out, heads) if predictor else None, has_target=True)
        self.view_groups = (ViewGroup(views),)
        self.momentum, self.ema, self.stop_gradient = momentum, ema, stop_gradient
        self.momentum_now, self.momentum_schedule = momentum, momentum_schedule
        # Without stop-gradient the paper trains the target by backpropagation too; the authors' code lets gradients
        # reach it but leaves it out of the optimizer, which changes nothing against the stop-gradient.
        assert self.target_encoder is not None
        self.target_encoder.requires_grad_(not stop_gradient and without_stop_gradient == "paper")

    def loss(self, views: Sequence[Tensor]) -> Tensor:  # V times B x C x H x W
        assert self.target_encoder is not None
        predictions = [self.predictor(self.online_encoder(view)) for view in views]  # V times B x d
        with torch.set_grad_enabled(not self.stop_gradient):
            targets = mean_of_others([self.target_encoder(view) for view in views])  # V times B x d
        # Of two views the sum over both directions, not their mean: a factor of two here is one in the learning rate.
        return 2 * mean_over_views(byol_loss, predictions, targets)

    def prepare(self, at: ClientRound) -> None:
        """m, or m_r = 1 − (1 − m) · (1 + cos(pi · r / R)) / 2 for r = 0 … R − 1."""
        if self.momentum_schedule == "cosine":
            wave = 1 + math.cos(math.pi * (at.round_number - 1) / at.rounds)
            self.momentum_now = 1 - (1 - self.momentum) * wave / 2

    def after_step(self) -> None:
        if self.ema:
            self.move_target(self.momentum_now)
