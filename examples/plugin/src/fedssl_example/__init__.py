"""A method, an update rule, an aggregator and a network: each is one class or function, its settings are keywords."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from fedssl.core.settings import Count, NonNegative
from fedssl.core.weights import Average, Weights
from fedssl.federation.messages import ClientState, ClientWeights, Scalars, TrainResult, TrainTask
from fedssl.federation.model_aggregation.base import Aggregator, joined
from fedssl.federation.model_communication import UpdateRule
from fedssl.methods.base import SiameseMethod
from fedssl.networks.heads import Encoder, HeadSizes, mlp


class Spread(SiameseMethod):
    """Views alike, and projections that spread over all dimensions: VICReg (Bardes et al., 2022) in short."""

    recipe = "weak-jitter"

    def __init__(
        self,
        backbone: nn.Module,
        feature_size: int,
        heads: HeadSizes,
        *,
        variance_weight: NonNegative = 1.0,
        covariance_weight: NonNegative = 0.04,
    ) -> None:
        super().__init__(Encoder(backbone, mlp(feature_size, heads)))
        self.variance_weight, self.covariance_weight = variance_weight, covariance_weight

    def loss(self, views: Sequence[Tensor]) -> Tensor:
        z1, z2 = (self.online_encoder(view) for view in views)  # B x d
        spread = _variance(z1) + _variance(z2)
        return F.mse_loss(z1, z2) + self.variance_weight * spread + self.covariance_weight * (_cov(z1) + _cov(z2))


def _variance(z: Tensor) -> Tensor:
    return F.relu(1 - (z.var(dim=0) + 1e-4).sqrt()).mean()


def _cov(z: Tensor) -> Tensor:
    centred = z - z.mean(dim=0)
    covariance = centred.T @ centred / max(len(z) - 1, 1)  # d x d
    return (covariance.square().sum() - covariance.diagonal().square().sum()) / z.shape[1]


@dataclass(frozen=True, kw_only=True)
class KeepPredictor(UpdateRule):
    """The encoder is replaced by the global one; predictor and target stay the client's own."""

    def update(self, local: ClientState, task: TrainTask) -> tuple[ClientWeights, Scalars]:
        return ClientWeights(task.global_weights.encoder, local.weights.predictor, local.weights.target), {"ema": 0.0}


@dataclass(frozen=True, kw_only=True)
class EqualAverage(Aggregator):
    """The mean of the uploads, every client the same, however many images it has."""

    bounded: ClassVar[bool] = True

    def combine(self, results: Sequence[TrainResult], previous: Weights) -> Weights:  # noqa: ARG002
        mean = Average(len(results))
        for result in results:
            mean.add(1, joined(result.weights))
        return mean.weights()


def patches(channels: int, *, width: Count = 8) -> nn.Module:
    """One convolution over patches of 4 x 4, and the mean over positions."""
    layers = [nn.Conv2d(channels, width, 4, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers)
