"""Augmented views of each image: a recipe for a whole batch of tensors, with parameters drawn per image."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedssl.core.view_groups import PAIR, ViewGroup
from fedssl.data.augmentation import colour, one_by_one
from fedssl.data.augmentation.parameters import Parameters, draw_parameters
from fedssl.data.augmentation.recipes import Recipe
from fedssl.data.augmentation.resampling import blur_matrix, blur_radius, crop_matrix, resample

LARGEST_TOGETHER = 64  # pixels a side of images and views; beyond, dense matrices grow with the third power


def make_views(
    pixels: Tensor, recipe: Recipe, generator: torch.Generator, groups: Sequence[ViewGroup] = PAIR
) -> list[Tensor]:
    """Independent views of uint8 images N x C x H x W: float32 in [0, 1], channels last, on the images' device."""
    views: list[Tensor] = []
    for group in groups:
        recipes = [recipe.of_view(len(views) + k, group) for k in range(group.count)]
        views += _make_group(pixels, recipes, generator, group.part)
    return views


def _make_group(pixels: Tensor, recipes: list[Recipe], generator: torch.Generator, part: float) -> list[Tensor]:
    """A view by each recipe, together: small batches are slow by the number of operations, not of pixels."""
    count, size = len(recipes), (pixels.shape[2], pixels.shape[3])
    drawn = [vars(draw_parameters(len(pixels), size, recipe, generator)) for recipe in recipes]
    together = Parameters(**{name: torch.cat([one[name] for one in drawn]) for name in drawn[0]})
    views = apply_parameters(torch.cat([pixels] * count), together, recipes[0].output(size, part))
    return [views[k * len(pixels) : (k + 1) * len(pixels)] for k in range(count)]


def augment(pixels: Tensor, recipe: Recipe, generator: torch.Generator) -> Tensor:
    """One view of each image; decided where the generator is (the CPU), so that the images' device need not answer."""
    return make_views(pixels, recipe, generator, (ViewGroup(1),))[0]


def apply_parameters(pixels: Tensor, parameters: Parameters, output: tuple[int, int] | None = None) -> Tensor:
    """Crop, flip, turn, jitter, grey, blur, solarise: in this order, without randomness, to `output` (height, width).

    Parameters may be on another device. Small images are worked on together, for their cost is the number of
    operations; large ones, on a CPU, one by one, for theirs is the memory that an operation on all of them reads.
    """
    output = output or (pixels.shape[2], pixels.shape[3])
    if pixels.device.type == "cpu" and max(*pixels.shape[2:], *output) > LARGEST_TOGETHER:
        return one_by_one.apply_parameters(pixels, parameters, output)
    return _apply_together(pixels, parameters, output)


def _apply_together(pixels: Tensor, parameters: Parameters, output: tuple[int, int]) -> Tensor:
    channels, height, width = pixels.shape[1:]
    top, left, crop_height, crop_width, flip = (
        _sent(value, pixels.device)
        for value in (parameters.top, parameters.left, parameters.height, parameters.width, parameters.flip)
    )
    rows = crop_matrix(top, crop_height, height, output[0])
    columns = crop_matrix(left, crop_width, width, output[1])
    columns = torch.where(flip.view(-1, 1, 1), columns.flip(1), columns)
    images = resample(pixels.float(), rows, columns.div_(255))  # uint8 to [0, 1] on the way
    _change(images, parameters.upside_down, lambda chosen: chosen.flip(2))
    _change(images, parameters.quarter_turn, lambda chosen: chosen.rot90(1, (2, 3)))
    _jitter(images, parameters)
    if channels == 3:
        _change(images, parameters.grey, lambda chosen: colour.grey(chosen).expand(-1, 3, -1, -1))
    blurred = _where(parameters.blur)
    if len(blurred):
        chosen, sigma = _sent(blurred, images.device), _sent(parameters.sigma[blurred], images.device)
        images.index_copy_(0, chosen, _blur(images.index_select(0, chosen), sigma))
    _change(images, parameters.solarise, colour.solarise)
    return images.clamp_(0, 1).contiguous(memory_format=torch.channels_last)  # clamp: sums of weights round above 1


def _change(images: Tensor, mask: Tensor, change: Callable[[Tensor], Tensor]) -> None:
    """Change in place the images that a mask chooses, if there are any."""
    numbers = _where(mask)
    if len(numbers):
        chosen = _sent(numbers, images.device)
        images.index_copy_(0, chosen, change(images.index_select(0, chosen)))


def _jitter(images: Tensor, parameters: Parameters) -> None:
    """Change the chosen images in place: each gets the four operations in its own order."""
    for step in range(parameters.order.shape[1]):
        for number, change in enumerate(colour.jitter_of(images.shape[1])):
            numbers = _where(parameters.jitter & (parameters.order[:, step] == number))
            amounts = _sent(parameters.amounts[:, number].index_select(0, numbers), images.device)
            chosen = _sent(numbers, images.device)
            images.index_copy_(0, chosen, change(images.index_select(0, chosen), amounts))


def _blur(images: Tensor, sigma: Tensor) -> Tensor:
    """Gaussian blur, each image by its own sigma."""
    height, width = images.shape[2:]
    radius = blur_radius(height, width)
    return resample(images, blur_matrix(sigma, radius, height), blur_matrix(sigma, radius, width))


def _where(mask: Tensor) -> Tensor:
    """The numbers of the images a mask chooses: only these are worked on."""
    return mask.nonzero().squeeze(1)


def _sent(decided: Tensor, device: torch.device) -> Tensor:
    return decided.to(device, non_blocking=True)
