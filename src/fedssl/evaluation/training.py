"""Supervised training with labels: the one loop behind the linear probe, fine-tuning and the supervised baseline."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedssl.evaluation.features import Watch, device_of, mode, unwatched
from fedssl.seeding import global_stream, torch_stream


@dataclass(frozen=True)
class Fitting:
    """Adam with a constant learning rate and cross-entropy."""

    epochs: int
    batch_size: int
    lr: float
    shuffle: bool = True


def fit(
    model: nn.Module,
    inputs: Callable[[Tensor], Tensor],
    labels: Tensor,
    fitting: Fitting,
    seed: int,
    name: str,
    watch: Watch = unwatched,
    after_epoch: Callable[[], None] | None = None,
) -> None:
    """Trains in place and leaves the modes as they were; `inputs` gives the batch of these images' numbers."""
    optimizer = torch.optim.Adam(model.parameters(), lr=fitting.lr, fused=True)
    stream = torch_stream(seed, name, "order")
    in_order = torch.arange(len(labels))
    labels = labels.to(device_of(model))
    # BatchNorm cannot normalise a batch of one image: such a rest is left out.
    smallest = 2 if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules()) else 1
    with mode(model, training=True), global_stream(seed, name, "dropout"):
        for epoch in range(1, fitting.epochs + 1):
            order = torch.randperm(len(labels), generator=stream) if fitting.shuffle else in_order
            for chosen in torch.split(order, fitting.batch_size):
                if len(chosen) < smallest:
                    continue
                loss = F.cross_entropy(model(inputs(chosen)), labels[chosen.to(labels.device)])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            if after_epoch:
                after_epoch()
            watch(name, epoch, fitting.epochs)
