"""Operation 1, local training: E epochs of self-supervised learning on one client's images."""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedssl.core.errors import FedsslError
from fedssl.core.memory import keep_freed_memory
from fedssl.core.seeding import derive_seed, global_stream, torch_stream
from fedssl.core.settings import Count, Fraction, NonNegative
from fedssl.core.stopwatch import Stopwatch
from fedssl.data.augmentation.views import Recipe, make_views
from fedssl.data.dataset import Pixels
from fedssl.methods.base import SiameseMethod
from fedssl.methods.collapse import feature_std

Loss = Callable[[Sequence[Tensor]], Tensor]


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """SGD as in the paper; a fresh optimizer every round, so its momentum starts at zero."""

    epochs: Count = 5
    batch_size: Count = 128
    lr: NonNegative = 0.032
    sgd_momentum: Fraction = 0.9
    weight_decay: NonNegative = 5e-4
    schedule: Literal["cosine", "constant"] = "cosine"
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"  # the last two: mixed, by autocast; for GPUs
    compile: bool = False  # torch.compile; for GPUs and long runs: the first steps take a minute, the bits are others

    def learning_rate(self, round_number: int, rounds: int) -> float:
        """lr_r = 0.5 · lr · (1 + cos(pi · r / R)) for r = 0 … R − 1, constant inside a round; ours count from 1."""
        if self.schedule == "constant":
            return self.lr
        return 0.5 * self.lr * (1 + math.cos(math.pi * (round_number - 1) / rounds))

    def check(self, device: torch.device) -> None:
        """Refuses what this device cannot do."""
        if self.precision == "fp16" and device.type == "cpu":
            raise FedsslError("local_training.precision: 'fp16' is for GPUs; on the CPU use 'fp32' or 'bf16'")

    def steps_per_epoch(self, num_images: int) -> int:
        """The short last batch is dropped; a client with fewer images than a batch trains on all of them at once."""
        return max(num_images // self.batch_size, 1)


@dataclass(frozen=True)
class TrainingReport:
    loss: float
    steps: int
    images: int
    feature_std: float


class Stepper:
    """Optimizer steps in the precision that was asked for; a loss stays on its device, so that nothing waits for it."""

    def __init__(self, method: SiameseMethod, settings: LocalTraining, lr: float, device: torch.device) -> None:
        self.method = method
        self.optimizer = torch.optim.SGD(
            method.trained_parameters(),
            lr=lr,
            momentum=settings.sgd_momentum,
            weight_decay=settings.weight_decay,
            fused=device.type in ("cpu", "cuda"),  # one pass over the weights instead of three
        )
        lower = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[settings.precision]
        self.autocast = torch.autocast(device.type, lower) if lower else nullcontext()
        self.scaler = torch.amp.GradScaler(device.type, enabled=settings.precision == "fp16")
        self.compiled_loss: Loss = torch.compile(method.loss) if settings.compile else method.loss

    def step(self, views: Sequence[Tensor]) -> Tensor:
        return self._step(self.compiled_loss, views)

    def last_step(self, views: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Also returns the projections that the loss saw last; never compiled, for a compiled loss keeps old hooks."""
        seen: list[Tensor] = []
        hook = self.method.online_encoder.register_forward_hook(lambda _, __, z: seen.append(z.detach()))
        try:
            return self._step(self.method.loss, views), seen[-1]
        finally:
            hook.remove()

    def _step(self, loss_of: Loss, views: Sequence[Tensor]) -> Tensor:
        with self.autocast:
            loss = loss_of(views)
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.method.after_step()
        return loss.detach()


def train_locally(
    method: SiameseMethod,
    pixels: Pixels,
    recipe: Recipe,
    settings: LocalTraining,
    lr: float,
    seed: int,
    on_step: Callable[[int, int, int], None] | None = None,
    clock: Stopwatch | None = None,
) -> TrainingReport:
    """Trains the method in place on uint8 images and returns the mean loss over the last epoch."""
    if len(pixels) < 2:
        raise FedsslError(f"{len(pixels)} images are too few: BatchNorm needs at least 2 in a batch")
    keep_freed_memory()
    clock = clock or Stopwatch()
    device = next(method.parameters()).device
    settings.check(device)
    stepper = Stepper(method, settings, lr, device)
    # Order and views are decided on the CPU whatever device trains: no step has to wait for an answer.
    order_stream, augment_stream = torch_stream(seed, "order"), torch_stream(seed, "augment")
    batch_size = min(settings.batch_size, len(pixels))
    steps = settings.steps_per_epoch(len(pixels))
    total = settings.epochs * steps
    loss_sum = torch.zeros((), device=device)
    method.train()
    with global_stream(seed, "dropout"):
        for epoch in range(settings.epochs):
            loss_sum.zero_()
            method.start_epoch()
            order = torch.randperm(len(pixels), generator=order_stream)
            for step in range(steps):
                with clock.part("augment"):
                    batch = pixels.index_select(0, order[step * batch_size : (step + 1) * batch_size])
                    views = make_views(batch.to(device, non_blocking=True), recipe, augment_stream, method.view_groups)
                done = epoch * steps + step + 1
                with clock.part("steps"):
                    if done < total:
                        loss_sum += stepper.step(views)
                    else:
                        loss, projections = stepper.last_step(views)
                        loss_sum += loss
                if on_step:
                    on_step(done, total, done * batch_size)
    return TrainingReport(float(loss_sum) / steps, total, total * batch_size, feature_std(projections))


def training_seed(seed: int, client_id: int, round_number: int) -> int:
    """Everything random in a client's round follows from these three numbers."""
    return derive_seed(seed, "client", client_id, "round", round_number)
