"""All that is random about a view: one table of numbers, drawn before any pixel is touched."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedssl.data.augmentation.recipes import Recipe

CROP_TRIES = 10
BLUR_SIGMA = (0.1, 2.0)
OPTIONAL = ("upside_down", "quarter_turn", "solarise")  # random numbers are drawn for those alone that a recipe wants


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """What is done to each of N images; every tensor has a row for each."""

    top: Tensor  # the crop, in pixels
    left: Tensor
    height: Tensor
    width: Tensor
    flip: Tensor  # bool
    jitter: Tensor  # bool
    order: Tensor  # N x 4: which JITTER operation comes first, second …
    amounts: Tensor  # N x 4: brightness, contrast and saturation factor, hue turn
    grey: Tensor  # bool
    blur: Tensor  # bool
    sigma: Tensor  # of the blur, in pixels
    upside_down: Tensor  # bool
    quarter_turn: Tensor  # bool
    solarise: Tensor  # bool


def draw_parameters(count: int, image_size: tuple[int, int], recipe: Recipe, generator: torch.Generator) -> Parameters:
    """All that is random about one view of `count` images, from one table of uniform numbers with a row for each."""
    wanted = [name for name in OPTIONAL if getattr(recipe, name) > 0]
    columns = [CROP_TRIES, CROP_TRIES, 2, 4, 4, 1, 1, 1, 1, 1, *[1] * len(wanted)]
    table = torch.rand(count, sum(columns), generator=generator, device=generator.device)
    areas, ratios, position, order, amounts, *rest = table.split_with_sizes(columns, dim=1)
    flip, jitter, grey, blur, sigma, *more = (column.squeeze(1) for column in rest)
    optional = dict.fromkeys(OPTIONAL, torch.zeros_like(flip, dtype=torch.bool))
    optional |= {name: column < getattr(recipe, name) for name, column in zip(wanted, more, strict=True)}
    top, left, height, width = _draw_crop(areas, ratios, position, image_size, recipe)
    factors = [(max(0.0, 1 - x), 1 + x) for x in (recipe.brightness, recipe.contrast, recipe.saturation)]
    low, high = torch.tensor([*factors, (-recipe.hue, recipe.hue)], device=generator.device).unbind(1)
    return Parameters(
        top=top,
        left=left,
        height=height,
        width=width,
        flip=flip < recipe.flip,
        jitter=jitter < recipe.jitter,
        order=order.argsort(dim=1),
        amounts=low + amounts * (high - low),
        grey=grey < recipe.grey,
        blur=blur < recipe.blur,
        sigma=BLUR_SIGMA[0] + sigma * (BLUR_SIGMA[1] - BLUR_SIGMA[0]),
        **optional,
    )


def _draw_crop(
    areas: Tensor, ratios: Tensor, position: Tensor, image_size: tuple[int, int], recipe: Recipe
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(top, left, height, width): the first of ten tries that fits into the image, else the largest centred crop.

    A try has a uniform area and a log-uniform width : height ratio, both inside the recipe's limits.
    """
    full_height, full_width = image_size
    area = full_height * full_width * (recipe.crop_scale_min + areas * (recipe.crop_scale_max - recipe.crop_scale_min))
    ratio_min, ratio_max = math.log(recipe.crop_ratio_min), math.log(recipe.crop_ratio_max)
    ratio = torch.exp(ratio_min + ratios * (ratio_max - ratio_min))
    heights, widths = (area / ratio).sqrt().round(), (area * ratio).sqrt().round()
    fits = (heights >= 1) & (heights <= full_height) & (widths >= 1) & (widths <= full_width)
    first = fits.int().argmax(dim=1, keepdim=True)
    height, width = heights.gather(1, first).squeeze(1), widths.gather(1, first).squeeze(1)
    free = torch.stack([full_height - height, full_width - width], dim=1)
    top, left = torch.minimum((position * (free + 1)).floor(), free).unbind(1)  # minimum: the product may round up
    none = ~fits.any(dim=1)
    widest = max(1, min(full_width, round(full_height * recipe.crop_ratio_max)))
    highest = max(1, min(full_height, round(full_width / recipe.crop_ratio_min)))
    centred = ((full_height - highest) // 2, (full_width - widest) // 2, highest, widest)
    drawn = (top, left, height, width)
    top, left, height, width = (d.masked_fill(none, c) for d, c in zip(drawn, centred, strict=True))
    return top, left, height, width
