"""Operation 1, local training: E epochs of self-supervised learning on one client's images."""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from typing import Annotated, Literal, NamedTuple

import torch
from annotated_types import Ge, Interval
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from fedssl.core.errors import FedsslError
from fedssl.core.memory import keep_freed_memory
from fedssl.core.progress import Progress, silent
from fedssl.core.seeding import derive_seed, global_stream, torch_stream
from fedssl.core.settings import Count, Fraction, NonNegative, Positive
from fedssl.core.stopwatch import Stopwatch
from fedssl.core.weights import Weights
from fedssl.data.augmentation.recipes import Recipe
from fedssl.data.augmentation.views import make_views
from fedssl.data.dataset import Pixels
from fedssl.federation.optimizers import OptimizerName, check_settings, make_optimizer, set_rate
from fedssl.federation.regularizers import Loss, RegularizedLoss
from fedssl.methods.base import SiameseMethod
from fedssl.methods.collapse import feature_std
from fedssl.networks.blocks import freeze

Received = tuple[Weights, Weights]  # W_g and W_g^p
Rate = Callable[[int, int], float]
Whole = Annotated[int, Ge(0)]


class Part(NamedTuple):
    """Which of the batches whose gradients make one step of the optimizer."""

    number: int
    of: int

    @classmethod
    def at(cls, step: int, steps: int, accumulate: int) -> "Part":
        """The last group of an epoch may be smaller: every image counts."""
        number = step % accumulate
        return cls(number, min(accumulate, steps - step + number))


WHOLE = Part(0, 1)


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """SGD as in the paper, unless another optimizer is chosen; a new one every round, so its momentum starts at zero.

    Steps are batches. The rate of a step is lr · schedule · warm-up · layer_decay ** (blocks above its tensor).
    """

    epochs: Count = 5  # of a round
    batch_size: Count = 128  # a short last batch is dropped
    lr: NonNegative = 0.032  # the rate of the first round, after any warm-up
    sgd_momentum: Fraction = 0.9  # of sgd and lars
    weight_decay: NonNegative = 5e-4  # adamw decays apart from the gradient; try 0.05 there
    schedule: Literal["cosine", "constant"] = "cosine"  # over the rounds of the run
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"  # bf16, fp16: mixed, by autocast; for GPUs
    compile: bool = False  # torch.compile; for GPUs and long runs: the first steps take a minute, the bits are others
    optimizer: OptimizerName = "sgd"  # or adamw, lars; new in every round
    beta1: Fraction = 0.9  # of adamw
    beta2: Fraction = 0.999  # of adamw
    trust: Positive = 0.001  # of lars: the length of a step as a share of the tensor's own
    weight_decay_on: Literal["all", "weights"] = "all"  # weights: neither norms nor biases; the paper decays all
    schedule_per: Literal["round", "step"] = "round"  # step: the rate also falls inside a round
    warmup_rounds: Whole = 0  # the n-th of w has n / (w + 1) of its rate
    warmup_steps: Whole = 0  # likewise, at the beginning of every round, where the optimizer is new
    clip_gradient: Positive | None = None  # the largest norm of all gradients together
    accumulate: Count = 1  # batches whose mean gradient makes one step; a loss still sees one batch
    freeze: Whole = 0  # first blocks of the backbone that are not trained; their BatchNorm statistics stay
    layer_decay: Annotated[float, Interval(gt=0, le=1)] = 1.0  # a block's rate as a share of the next one's
    decorrelation: NonNegative = 0.0  # weight of FedDecorr's term on backbone features; its paper: 0.1
    uniformity: NonNegative = 0.0  # weight of FedU²'s term on projections; its paper: 0.01
    proximal: NonNegative = 0.0  # FedProx's mu: weight of ½ ‖W − W_g‖²
    devices: Count = 1  # GPUs that share every batch of a client

    def __post_init__(self) -> None:
        check_settings(self, ((one.name, one.default) for one in fields(self)))

    def learning_rate(self, round_number: int, rounds: int, step: int = 0, steps: int = 0) -> float:
        """lr_r = 0.5 · lr · (1 + cos(pi · r / R)) for r = 0 … R − 1, constant inside a round; ours count from 1.

        With steps the rate of one of them, counted from 0, which may differ from that of its round.
        """
        by_step = self.schedule_per == "step" and steps > 0
        lr, inside = self.lr, step / steps if by_step else 0.0
        if self.schedule == "cosine":
            lr = 0.5 * self.lr * (1 + math.cos(math.pi * (round_number - 1 + inside) / rounds))
        units = steps if by_step else 1  # of warm-up in a round
        lr *= _warm((round_number - 1) * units + (step if by_step else 0), self.warmup_rounds * units)
        return lr * _warm(step, self.warmup_steps) if steps else lr

    @property
    def needs_rounds(self) -> bool:
        """Whether the rates of a run depend on how many rounds it has."""
        return self.schedule != "constant"

    def check(self, device: torch.device) -> None:
        """Refuses what this device cannot do."""
        if self.precision == "fp16" and device.type == "cpu":
            raise FedsslError("local_training.precision: 'fp16' is for GPUs; on the CPU use 'fp32' or 'bf16'")
        there = torch.cuda.device_count() if device.type == "cuda" else 1
        if self.devices > there and device.type != "cpu":
            raise FedsslError(f"local_training.devices: {self.devices} are needed, here are {there} ({device.type})")
        if self.compile and self.regularizes:
            raise FedsslError(
                "local_training.compile: a compiled loss cannot be watched: leave it out, or decorrelation, uniformity "
                "and proximal"
            )

    @property
    def regularizes(self) -> bool:
        """Whether anything is added to a method's loss."""
        return bool(self.decorrelation or self.uniformity or self.proximal)

    def loss_of(self, method: SiameseMethod, received: Received | None) -> Loss:
        """The method's own loss, or with what these settings add to it."""
        if not self.regularizes:
            return method.loss
        terms = {"decorrelation": self.decorrelation, "uniformity": self.uniformity, "proximal": self.proximal}
        return RegularizedLoss(method, received, **terms)

    def steps_per_epoch(self, num_images: int) -> int:
        """The short last batch is dropped; a client with fewer images than a batch trains on all of them at once."""
        return max(num_images // self.batch_size, 1)


def _warm(done: int, width: int) -> float:
    """The share of its rate that the next of `width` warm-up steps has."""
    return min((done + 1) / (width + 1), 1.0)


@dataclass(frozen=True, kw_only=True)
class TrainingReport:
    loss: float
    steps: int
    images: int
    feature_std: float
    core_seconds_elsewhere: float = 0.0  # in processes of its own


class Stepper:
    """Optimizer steps in the precision that was asked for; a loss stays on its device, so that nothing waits for it."""

    def __init__(
        self,
        method: SiameseMethod,
        settings: LocalTraining,
        *,
        lr: float,
        device: torch.device,
        loss: Loss | None = None,
    ) -> None:
        self.method, self.loss, self.clip = method, loss or settings.loss_of(method, None), settings.clip_gradient
        self.optimizer = make_optimizer(method, settings, lr, device)
        lower = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[settings.precision]
        self.autocast = torch.autocast(device.type, lower) if lower else nullcontext()
        self.scaler = torch.amp.GradScaler(device.type, enabled=settings.precision == "fp16")
        self.compiled_loss: Loss = torch.compile(self.loss) if settings.compile else self.loss

    def step(self, views: Sequence[Tensor], part: Part = WHOLE) -> Tensor:
        return self._step(self.compiled_loss, views, part)

    def last_step(self, views: Sequence[Tensor], part: Part = WHOLE) -> tuple[Tensor, Tensor]:
        """Also returns the projections that the loss saw last; never compiled, for a compiled loss keeps old hooks."""
        seen: list[Tensor] = []
        encoder = self.method.online_encoder  # of which a loss may call the parts one by one
        hooks = [
            module.register_forward_hook(lambda _, __, z: seen.append(z.detach()))
            for module in (encoder, encoder.projector)
        ]
        try:
            return self._step(self.loss, views, part), seen[-1]
        finally:
            for hook in hooks:
                hook.remove()

    def _step(self, loss_of: Loss, views: Sequence[Tensor], part: Part) -> Tensor:
        with self.autocast:
            loss = loss_of(views)
        if part.number == 0:
            self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss / part.of if part.of > 1 else loss).backward()  # type: ignore[no-untyped-call]
        if part.number == part.of - 1:
            self._move()
        return loss.detach()

    def _move(self) -> None:
        if self.clip is not None:
            self.scaler.unscale_(self.optimizer)
            clip_grad_norm_(self.method.trained_parameters(), self.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.method.after_step()


def training_mode(method: SiameseMethod, settings: LocalTraining) -> None:
    """Networks as they train: all of them but the first blocks that are frozen."""
    method.train()
    for encoder in filter(None, (method.online_encoder, method.target_encoder)):
        freeze(encoder.backbone, settings.freeze)


def train_locally(
    method: SiameseMethod,
    pixels: Pixels,
    recipe: Recipe,
    settings: LocalTraining,
    lr: float | Rate,
    seed: int,
    progress: Progress = silent,
    clock: Stopwatch | None = None,
    received: Received | None = None,
    loss: Loss | None = None,
) -> TrainingReport:
    """Trains the method in place on uint8 images and returns the mean loss over the last epoch.

    `lr` is one rate for all steps, or gives that of a step by its number (from 0) and their count. FedProx's term
    measures from `received`; without it, from where training starts. `loss` stands in for the one of the settings,
    where several processes compute it together.
    """
    if len(pixels) < 2:
        raise FedsslError(f"{len(pixels)} images are too few: BatchNorm needs at least 2 in a batch")
    keep_freed_memory()
    clock = clock or Stopwatch()
    device = next(method.parameters()).device
    settings.check(device)
    batch_size = min(settings.batch_size, len(pixels))
    steps = settings.steps_per_epoch(len(pixels))
    total = settings.epochs * steps
    rate = lr if callable(lr) else lambda step, steps: lr  # noqa: ARG005
    training_mode(method, settings)
    stepper = Stepper(
        method, settings, lr=rate(0, total), device=device, loss=loss or settings.loss_of(method, received)
    )
    # Order and views are decided on the CPU whatever device trains: no step has to wait for an answer.
    order_stream, augment_stream = torch_stream(seed, "order"), torch_stream(seed, "augment")
    loss_sum = torch.zeros((), device=device)
    with global_stream(seed, "dropout"):
        for epoch in range(settings.epochs):
            loss_sum.zero_()
            method.start_epoch()
            order = torch.randperm(len(pixels), generator=order_stream)
            for step in range(steps):
                with clock.part("augment"):
                    batch = pixels.index_select(0, order[step * batch_size : (step + 1) * batch_size])
                    views = make_views(batch.to(device, non_blocking=True), recipe, augment_stream, method.view_groups)
                done, part = epoch * steps + step + 1, Part.at(step, steps, settings.accumulate)
                with clock.part("steps"):
                    set_rate(stepper.optimizer, rate(done - 1, total))
                    if done < total:
                        loss_sum += stepper.step(views, part)
                    else:
                        last_loss, projections = stepper.last_step(views, part)
                        loss_sum += last_loss
                progress("training", done, total, images=done * batch_size)
    return TrainingReport(
        loss=float(loss_sum) / steps, steps=total, images=total * batch_size, feature_std=feature_std(projections)
    )


def training_seed(seed: int, client_id: int, round_number: int) -> int:
    """Everything random in a client's round follows from these three numbers."""
    return derive_seed(seed, "client", client_id, "round", round_number)
