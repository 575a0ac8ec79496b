"""Colour changes of a batch of float images in [0, 1], N x C x H x W; an amount is a number, or one for each image."""

from collections.abc import Callable

import torch
from torch import Tensor

Amount = Tensor | float  # a tensor of shape N, or one number for all

GREY_WEIGHTS = (0.299, 0.587, 0.114)  # ITU-R 601 luma, as PIL
SOLARISED_FROM = 128 / 255  # brighter pixels are inverted


def grey(images: Tensor) -> Tensor:
    """Luma, N x 1 x H x W; an image of one channel is its own."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)
    luma = (red * GREY_WEIGHTS[0]).add_(green, alpha=GREY_WEIGHTS[1]).add_(blue, alpha=GREY_WEIGHTS[2])
    return luma.unsqueeze(1)


def change_brightness(images: Tensor, factor: Amount) -> Tensor:
    """factor · image, clamped to [0, 1]."""
    return (images * _per_image(factor)).clamp_(0, 1)


def change_contrast(images: Tensor, factor: Amount) -> Tensor:
    """mean + factor · (image − mean), clamped; mean is that of the grey image."""
    mean = grey(images).mean(dim=(1, 2, 3), keepdim=True)
    return torch.lerp(mean, images, _per_image(factor)).clamp_(0, 1)


def change_saturation(images: Tensor, factor: Amount) -> Tensor:
    """grey + factor · (image − grey), clamped."""
    return torch.lerp(grey(images), images, _per_image(factor)).clamp_(0, 1)


def turn_hue(images: Tensor, turn: Amount) -> Tensor:
    """Turn the hue by a part of the colour circle (0.5: the opposite colour); HSV's value and saturation stay.

    HSV without its six cases: with low and high the smallest and largest channel and ± the sign of g − b,
      hue = ± ((g − low) + (b − low) + (high − r)) / 6(high − low), between −1/2 and 1/2, red 0, green 1/3, blue −1/3;
      channel = low + (high − low) · clamp(|6·frac(hue + c) − 3| − 1, 0, 1), c = 0, 2/3, 1/3 for red, green, blue.
    """
    red, green, blue = images.unbind(1)
    low = torch.minimum(green, blue).minimum(red)
    high = torch.maximum(green, blue).maximum(red)
    spread = high - low
    hue = (green - low).add_(blue).sub_(low).add_(high).sub_(red)
    hue.div_((6 * spread).clamp_(min=1e-12))  # of grey 0 / 1e-12
    hue.copysign_(green - blue).add_(_per_image(turn, 3) + 1)  # + 1: frac() is that of a positive number
    offsets = torch.tensor([0, 2 / 3, 1 / 3]).view(1, 3, 1, 1).to(images.device, non_blocking=True)
    wave = (hue.unsqueeze(1) + offsets).frac_().mul_(6).sub_(3).abs_().sub_(1).clamp_(0, 1)
    return wave.mul_(spread.unsqueeze(1)).add_(low.unsqueeze(1))


def solarise(images: Tensor) -> Tensor:
    """Bright pixels inverted."""
    return torch.where(images >= SOLARISED_FROM, 1 - images, images)


def _per_image(amount: Amount, dimensions: int = 4) -> Amount:
    return amount.view(-1, *[1] * (dimensions - 1)) if isinstance(amount, Tensor) else amount


# The operations that `Parameters.order` numbers and `Parameters.amounts` has a column for.
JITTER = (change_brightness, change_contrast, change_saturation, turn_hue)


def jitter_of(channels: int) -> tuple[Callable[[Tensor, Amount], Tensor], ...]:
    """The operations for images of so many channels: one has no saturation and no hue, other channels no colours."""
    return {1: JITTER[:2], 3: JITTER}.get(channels, ())
