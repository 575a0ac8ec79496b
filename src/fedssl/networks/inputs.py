"""Images as networks take them: floats from 0 to 1."""

import torch
from torch import Tensor


def as_floats(images: Tensor) -> Tensor:
    """uint8 images from 0 to 1; floats are that already."""
    return images.float().div(255) if images.dtype == torch.uint8 else images


def as_input(pixels: Tensor, device: torch.device) -> Tensor:
    """uint8 images as training and evaluation give them to a network."""
    return as_floats(pixels.to(device)).contiguous(memory_format=torch.channels_last)
