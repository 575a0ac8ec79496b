"""Training with labels: the order of images, and the loop behind fine-tuning and the supervised baseline."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedssl.core.eager import eager
from fedssl.core.progress import Progress, silent
from fedssl.core.seeding import global_stream, torch_stream
from fedssl.evaluation.features import device_of, mode


@dataclass(frozen=True)
class Fitting:
    """Adam with a constant learning rate and cross-entropy."""

    epochs: int
    batch_size: int
    lr: float
    shuffle: bool = True

    def batches(self, count: int, seed: int, name: str) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
        """For every epoch, counted from 1: the numbers of its images, batch by batch."""
        stream, in_order = torch_stream(seed, name, "order"), torch.arange(count)
        for epoch in range(1, self.epochs + 1):
            order = torch.randperm(count, generator=stream) if self.shuffle else in_order
            yield epoch, torch.split(order, self.batch_size)


def fit(
    model: nn.Module,
    inputs: Callable[[Tensor], Tensor],
    labels: Tensor,
    fitting: Fitting,
    seed: int,
    name: str,
    progress: Progress = silent,
    after_epoch: Callable[[], None] | None = None,
) -> None:
    """Trains in place and leaves the modes as they were; `inputs` gives the batch of these images' numbers."""
    optimizer = eager(torch.optim.Adam)(model.parameters(), lr=fitting.lr, fused=True)
    labels = labels.to(device_of(model))
    # BatchNorm cannot normalise a batch of one image: such a rest is left out.
    smallest = 2 if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules()) else 1
    with mode(model, training=True), global_stream(seed, name, "dropout"):
        for epoch, batches in fitting.batches(len(labels), seed, name):
            for chosen in batches:
                if len(chosen) < smallest:
                    continue
                loss = F.cross_entropy(model(inputs(chosen)), labels[chosen.to(labels.device)])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            if after_epoch:
                after_epoch()
            progress(name, epoch, fitting.epochs)
