"""What local training adds to the loss of any method: FedDecorr, FedU²'s uniformity and FedProx, each off at 0."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedssl.core.errors import FedsslError
from fedssl.core.weights import Weights
from fedssl.methods.base import SiameseMethod
from fedssl.methods.losses import in_float32

Loss = Callable[[Sequence[Tensor]], Tensor]
SLICES = 50  # directions along which projections are compared with the uniform distribution
EPSILON = 1e-8  # of a variance: a feature that is the same for all images correlates with none


@in_float32
def feature_correlation(features: Tensor) -> Tensor:
    """FedDecorr: the mean of corr(h_i, h_j)² over all features i ≠ j, correlated over the batch (Shi et al., 2023)."""
    centred = features - features.mean(dim=0)
    standardised = centred / (centred.square().mean(dim=0) + EPSILON).sqrt()  # N x d
    squared = (standardised.T @ standardised / len(features)).square()  # d x d
    size = len(squared)
    return (squared.sum() - squared.diagonal().sum()) / max(size * (size - 1), 1)


@in_float32
def distance_to_sphere(projections: Tensor) -> Tensor:
    """FedU²: squared sliced Wasserstein distance of normalised projections to the uniform sphere (Liao et al., 2024).

    Along random directions of length √d, so that its size does not depend on d; the sphere is sampled as often as there
    are projections. Both are drawn on the CPU, from the generator that a client's round seeds.
    """
    count, size = projections.shape
    drawn = torch.randn(count + SLICES, size).to(projections.device)
    sphere, directions = F.normalize(drawn[:count], dim=1), drawn[count:]  # N x d, S x d
    ours, theirs = (z @ directions.T for z in (F.normalize(projections, dim=1), sphere))  # N x S
    return (ours.sort(dim=0).values - theirs.sort(dim=0).values).square().mean()


def proximal_term(parameters: Sequence[Tensor], anchors: Sequence[Tensor]) -> Tensor:
    """FedProx: ½ ‖W − W_g‖² (Li et al., 2020)."""
    pairs = zip(parameters, anchors, strict=True)
    return 0.5 * torch.stack([(ours - theirs).square().sum() for ours, theirs in pairs]).sum()


class RegularizedLoss:
    """A method's loss + decorrelation · that of its features + uniformity · that of its projections + proximal · ….

    Features and projections are what the online encoder made of the views; each term is the mean over its passes.
    """

    def __init__(
        self,
        method: SiameseMethod,
        received: tuple[Weights, Weights] | None,
        *,
        decorrelation: float,
        uniformity: float,
        proximal: float,
    ) -> None:
        self.method = method
        self.decorrelation, self.uniformity, self.proximal = decorrelation, uniformity, proximal
        modules = (method.online_encoder, method.predictor)
        sent = received or tuple(map(Weights.of, modules))  # without a server: where training starts
        pairs = [
            (parameter, weights.parameters[name].to(parameter.device))
            for module, weights in zip(modules, sent, strict=True)
            for name, parameter in module.named_parameters()
            if parameter.requires_grad and proximal
        ]
        self.parameters, self.anchors = [ours for ours, _ in pairs], [theirs for _, theirs in pairs]

    def __call__(self, views: Sequence[Tensor]) -> Tensor:
        encoder = self.method.online_encoder
        features, projections = _Seen(encoder.backbone), _Seen(encoder.projector)
        with features, projections:
            loss = self.method.loss(views)
        if self.decorrelation:
            loss = loss + self.decorrelation * features.mean(feature_correlation, "decorrelation")
        if self.uniformity:
            loss = loss + self.uniformity * projections.mean(distance_to_sphere, "uniformity")
        return loss + self.proximal * proximal_term(self.parameters, self.anchors) if self.proximal else loss


class _Seen:
    """What a module returned while it is watched."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.outputs = module, list[Tensor]()

    def __enter__(self) -> None:
        self.hook = self.module.register_forward_hook(lambda _, __, output: self.outputs.append(output))

    def __exit__(self, *_: object) -> None:
        self.hook.remove()

    def mean(self, term: Callable[[Tensor], Tensor], setting: str) -> Tensor:
        if not self.outputs or any(output.ndim != 2 for output in self.outputs):
            raise FedsslError(f"local_training.{setting}: this method makes no vector of a whole image: set it to 0")
        return torch.stack([term(output) for output in self.outputs]).mean()
