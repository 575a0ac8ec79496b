"""Operation 1, local training: E epochs of self-supervised learning on one client's images."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedssl.data.augmentations import Recipe, two_views
from fedssl.data.images import Pixels
from fedssl.errors import FedsslError
from fedssl.methods.base import SiameseMethod
from fedssl.methods.collapse import feature_std
from fedssl.seeding import derive_seed, global_stream, torch_stream
from fedssl.settings import Count, Fraction, NonNegative


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """SGD as in the paper; a fresh optimizer every round, so its momentum starts at zero."""

    epochs: Count = 5
    batch_size: Count = 128
    lr: NonNegative = 0.032
    sgd_momentum: Fraction = 0.9
    weight_decay: NonNegative = 5e-4
    schedule: Literal["cosine", "constant"] = "cosine"

    def learning_rate(self, round_number: int, rounds: int) -> float:
        """lr_r = 0.5 · lr · (1 + cos(pi · r / R)) for r = 0 … R − 1, constant inside a round; ours count from 1."""
        if self.schedule == "constant":
            return self.lr
        return 0.5 * self.lr * (1 + math.cos(math.pi * (round_number - 1) / rounds))

    def steps_per_epoch(self, num_images: int) -> int:
        """The short last batch is dropped; a client with fewer images than a batch trains on all of them at once."""
        return max(num_images // self.batch_size, 1)


@dataclass(frozen=True)
class TrainingReport:
    loss: float
    steps: int
    images: int
    feature_std: float


def train_locally(
    method: SiameseMethod,
    pixels: Pixels,
    recipe: Recipe,
    settings: LocalTraining,
    lr: float,
    seed: int,
    on_step: Callable[[int, int, int], None] | None = None,
) -> TrainingReport:
    """Trains the method in place on uint8 images and returns the mean loss over the last epoch."""
    if len(pixels) < 2:
        raise FedsslError(f"{len(pixels)} images are too few: BatchNorm needs at least 2 in a batch")
    device = next(method.parameters()).device
    optimizer = torch.optim.SGD(
        method.trained_parameters(), lr=lr, momentum=settings.sgd_momentum, weight_decay=settings.weight_decay
    )
    order_stream = torch_stream(seed, "order")
    augment_stream = torch_stream(seed, "augment", device=device)
    batch_size = min(settings.batch_size, len(pixels))
    steps = settings.steps_per_epoch(len(pixels))
    total = settings.epochs * steps
    loss_sum = torch.zeros((), device=device)
    last: dict[str, Tensor] = {}  # the projections that the loss saw last, for the collapse measure
    hook = method.online_encoder.register_forward_hook(lambda _, __, z: last.update(projections=z.detach()))
    method.train()
    try:
        with global_stream(seed, "dropout"):
            for epoch in range(settings.epochs):
                loss_sum.zero_()
                order = torch.randperm(len(pixels), generator=order_stream)
                for step in range(steps):
                    batch = pixels.index_select(0, order[step * batch_size : (step + 1) * batch_size])
                    loss = method.loss(*two_views(batch.to(device), recipe, augment_stream))
                    optimizer.zero_grad(set_to_none=True)
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                    method.after_step()
                    loss_sum += loss.detach()
                    if on_step:
                        done = epoch * steps + step + 1
                        on_step(done, total, done * batch_size)
    finally:
        hook.remove()
    return TrainingReport(float(loss_sum) / steps, total, total * batch_size, feature_std(last["projections"]))


def training_seed(seed: int, client_id: int, round_number: int) -> int:
    """Everything random in a client's round follows from these three numbers."""
    return derive_seed(seed, "client", client_id, "round", round_number)
