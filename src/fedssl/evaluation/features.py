"""Features of images, computed once, and BatchNorm statistics re-estimated on the images at hand."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Literal

import torch
from torch import Tensor, nn

from fedssl.core.progress import Progress, silent
from fedssl.networks.inputs import as_input

BatchNorm = Literal["running", "reestimated"]


@contextmanager
def mode(module: nn.Module, *, training: bool) -> Iterator[None]:
    """Training or evaluation mode inside; outside every part has the mode it had, also after an error."""
    before = [(part, part.training) for part in module.modules()]
    module.train(training)
    try:
        yield
    finally:
        for part, was_training in before:
            part.training = was_training


def device_of(module: nn.Module) -> torch.device:
    return next(module.parameters()).device


def _batches(
    pixels: Tensor, batch_size: int | None, device: torch.device, progress: Progress, text: str
) -> Iterator[Tensor]:
    batch_size = batch_size or batch_size_for(*pixels.shape[2:])
    for start in range(0, len(pixels), batch_size):
        yield as_input(pixels[start : start + batch_size], device)
        progress(text, min(start + batch_size, len(pixels)), len(pixels))


def batch_size_for(height: int, width: int) -> int:
    """500 images up to 32 x 32 pixels, of larger ones fewer: what a network makes of a batch must fit into memory."""
    return min(500, max(32, 500 * 32 * 32 // (height * width)))


@torch.no_grad()
def compute_features(
    encoder: nn.Module,
    pixels: Tensor,
    batch_size: int | None = None,
    progress: Progress = silent,
    text: str = "features",
) -> Tensor:
    """N x d features of uint8 images, on the CPU; the encoder is in evaluation mode meanwhile."""
    with mode(encoder, training=False):
        batches = _batches(pixels, batch_size, device_of(encoder), progress, text)
        return torch.cat([encoder(batch).float().cpu() for batch in batches])


def batchnorm_layers(module: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """None of a network that normalises otherwise, by LayerNorm."""
    return [layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]


@torch.no_grad()
def with_reestimated_batchnorm(
    encoder: nn.Module,
    pixels: Tensor,
    batch_size: int | None = None,
    progress: Progress = silent,
    text: str = "BatchNorm statistics",
) -> nn.Module:
    """A copy whose BatchNorm statistics are the plain average over these images, not the running ones it came with."""
    encoder = deepcopy(encoder)
    layers = batchnorm_layers(encoder)
    if not layers:  # there is nothing to estimate
        return encoder.eval()
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # PyTorch's cumulative average
    encoder.train()
    for batch in _batches(pixels, batch_size, device_of(encoder), progress, text):
        if len(batch) > 1:
            encoder(batch)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    return encoder.eval()
