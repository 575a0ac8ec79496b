"""Features of images, computed once, and BatchNorm statistics re-estimated on the images at hand."""

from collections.abc import Iterator
from copy import deepcopy

import torch
from torch import Tensor, nn


def _batches(pixels: Tensor, batch_size: int, device: torch.device) -> Iterator[Tensor]:
    for start in range(0, len(pixels), batch_size):
        batch = pixels[start : start + batch_size].to(device).float().div(255)
        yield batch.contiguous(memory_format=torch.channels_last)


@torch.no_grad()
def compute_features(encoder: nn.Module, pixels: Tensor, batch_size: int = 500) -> Tensor:
    """N x d features of uint8 images, on the CPU; the encoder is in evaluation mode meanwhile."""
    was_training = encoder.training
    encoder.eval()
    device = next(encoder.parameters()).device
    features = torch.cat([encoder(batch).float().cpu() for batch in _batches(pixels, batch_size, device)])
    encoder.train(was_training)
    return features


@torch.no_grad()
def with_reestimated_batchnorm(encoder: nn.Module, pixels: Tensor, batch_size: int = 500) -> nn.Module:
    """A copy whose BatchNorm statistics are the plain average over these images, not the running ones it came with."""
    encoder = deepcopy(encoder)
    layers = [layer for layer in encoder.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # PyTorch's cumulative average
    encoder.train()
    device = next(encoder.parameters()).device
    for batch in _batches(pixels, batch_size, device):
        if len(batch) > 1:
            encoder(batch)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    return encoder.eval()
