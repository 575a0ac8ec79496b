"""Views of large images on a CPU, one after the other: all that is done to an image happens in the processor's cache.

Crop and resize are torch's antialiased interpolation of uint8, which rounds as PIL does.
"""

import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor

from fedssl.data.augmentation import colour
from fedssl.data.augmentation.parameters import Parameters
from fedssl.data.augmentation.resampling import blur_radius

BLUR_REACH = 5  # sigmas; what lies beyond is below 1e-5 of the whole


def apply_parameters(pixels: Tensor, parameters: Parameters, output: tuple[int, int]) -> Tensor:
    """What `views.apply_parameters` says, for uint8 images N x C x H x W."""
    columns = {name: values.tolist() for name, values in vars(parameters).items()}
    views = torch.empty(len(pixels), pixels.shape[1], *output, memory_format=torch.channels_last)
    for number, image in enumerate(pixels):
        decided = SimpleNamespace(**{name: column[number] for name, column in columns.items()})
        view = _cropped(image.unsqueeze(0), decided, output).float().div_(255)
        views[number : number + 1] = _recoloured(view, decided)
    return views


def _cropped(image: Tensor, decided: SimpleNamespace, output: tuple[int, int]) -> Tensor:
    top, left, height, width = map(int, (decided.top, decided.left, decided.height, decided.width))
    crop = image[:, :, top : top + height, left : left + width]
    view = F.interpolate(crop, output, mode="bilinear", antialias=True)
    mirrored = [axis for axis, chosen in ((2, decided.upside_down), (3, decided.flip)) if chosen]
    view = view.flip(mirrored) if mirrored else view
    return view.rot90(1, (2, 3)) if decided.quarter_turn else view


def _recoloured(view: Tensor, decided: SimpleNamespace) -> Tensor:
    channels, operations = view.shape[1], colour.jitter_of(view.shape[1])
    if decided.jitter:
        for number in decided.order:
            if number < len(operations):
                view = operations[number](view, decided.amounts[number])
    if decided.grey and channels == 3:
        view = colour.grey(view).expand(-1, 3, -1, -1)
    if decided.blur:
        view = blur(view, decided.sigma)
    return colour.solarise(view) if decided.solarise else view


def blur(images: Tensor, sigma: float) -> Tensor:
    """Gaussian blur of N x C x H x W; the image is mirrored at its edge."""
    height, width = images.shape[2:]
    radius = min(blur_radius(height, width), math.ceil(BLUR_REACH * sigma))
    weights = [math.exp(-0.5 * (offset / sigma) ** 2) for offset in range(-radius, radius + 1)]
    weights = [weight / sum(weights) for weight in weights]
    blurred = F.pad(images, (radius,) * 4, mode="reflect")
    for axis, size in ((2, height), (3, width)):
        source, blurred = blurred, blurred.narrow(axis, 0, size) * weights[0]
        for offset, weight in enumerate(weights[1:], 1):
            blurred.add_(source.narrow(axis, offset, size), alpha=weight)
    return blurred
