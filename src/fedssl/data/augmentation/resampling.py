"""Crop, resize, flip and blur as two small matrices per image, one for its rows and one for its columns."""

import torch
from torch import Tensor


def resample(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """rows · image · columnsᵀ for every image and channel; rows is N x H_out x H, columns N x W_out x W."""
    count, channels, height, width = images.shape
    across = torch.bmm(images.reshape(count, channels * height, width), columns.transpose(1, 2))
    return torch.matmul(rows.unsqueeze(1), across.view(count, channels, height, columns.shape[1]))


def crop_matrix(start: Tensor, length: Tensor, size: int, output_size: int) -> Tensor:
    """Bilinear weights, N x output_size x size, that bring pixels [start, start + length) to `output_size` pixels.

    Half-pixel centres; nothing outside the crop is looked at. Where the crop is larger than the output, the triangle is
    as many times wider (antialiasing, as PIL and torchvision do), else it is one pixel wide: plain bilinear.
    """
    start, length = start.view(-1, 1, 1), length.view(-1, 1, 1)
    step = length / output_size
    pixel = torch.arange(size, device=start.device, dtype=start.dtype).view(1, 1, -1)
    output = torch.arange(output_size, device=start.device, dtype=start.dtype).view(1, -1, 1)
    centre = start + (output + 0.5) * step - 0.5
    weights = (1 - (pixel - centre).abs_().div_(step.clamp(min=1))).clamp_(min=0)
    weights.mul_((pixel >= start) & (pixel < start + length))
    return weights.div_(weights.sum(dim=2, keepdim=True))


def blur_radius(height: int, width: int) -> int:
    """Of a blur over a tenth of the image, as SimCLR; an odd number of pixels, three or more."""
    return max(1, min(height, width) // 20)


def blur_matrix(sigma: Tensor, radius: int, size: int) -> Tensor:
    """Gaussian weights, N x size x size, over 2·radius + 1 pixels; the image is mirrored at its edge."""
    offset = torch.arange(-radius, radius + 1, device=sigma.device)
    kernel = torch.exp(-0.5 * (offset / sigma.view(-1, 1)) ** 2)  # N x taps
    kernel /= kernel.sum(dim=1, keepdim=True)
    source = (torch.arange(size, device=sigma.device).view(-1, 1) + offset).abs()  # size x taps
    source = (size - 1 - source).abs().neg_().add_(size - 1)
    pixel = torch.arange(size, device=sigma.device)
    taps = (source.unsqueeze(2) == pixel).to(kernel.dtype)  # size x taps x size; one_hot would wait for the device
    return torch.einsum("nt,ots->nos", kernel, taps)
