"""Augmented views of each image: a recipe for a whole batch of tensors, with parameters drawn per image."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from fedssl.core.errors import FedsslError
from fedssl.core.registry import Registry
from fedssl.core.settings import Fraction, NonNegative, Positive
from fedssl.core.view_groups import PAIR, ViewGroup
from fedssl.data.augmentation import colour
from fedssl.data.augmentation.resampling import blur_matrix, crop_matrix, resample

CROP_TRIES = 10
BLUR_SIGMA = (0.1, 2.0)
SOLARISED_FROM = 128 / 255  # brighter pixels are inverted
OPTIONAL = ("upside_down", "quarter_turn", "solarise")  # random numbers are drawn for those alone that a recipe wants
# The operations that `Parameters.order` numbers and `Parameters.amounts` has a column for.
JITTER = (colour.change_brightness, colour.change_contrast, colour.change_saturation, colour.turn_hue)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """SimCLR's: crop, flip, colour jitter, grey; blur is off, as in the paper at 32 x 32. Rates are probabilities."""

    crop_scale_min: Fraction = 0.08  # area of the crop, as a part of the image
    crop_scale_max: Fraction = 1.0
    crop_ratio_min: Positive = 3 / 4  # width : height of the crop
    crop_ratio_max: Positive = 4 / 3
    flip: Fraction = 0.5
    jitter: Fraction = 0.8
    brightness: NonNegative = 0.8  # factors are uniform in [max(0, 1 − x), 1 + x]
    contrast: NonNegative = 0.8
    saturation: NonNegative = 0.8
    hue: Annotated[float, Interval(ge=0, le=0.5)] = 0.2  # uniform in [−x, x] turns of the colour circle
    grey: Fraction = 0.2
    blur: Fraction = 0.0
    blur_first: Fraction | None = None  # of an image's first view; default: as the others
    blur_second: Fraction | None = None
    solarise: Fraction = 0.0
    solarise_second: Fraction | None = None
    upside_down: Fraction = 0.0
    quarter_turn: Fraction = 0.0
    output_size: Annotated[int, Ge(0)] = 0  # 0: the size of the image

    def __post_init__(self) -> None:
        for low, high in (("crop_scale_min", "crop_scale_max"), ("crop_ratio_min", "crop_ratio_max")):
            if getattr(self, low) > getattr(self, high):
                raise FedsslError(f"{low} {getattr(self, low):g} is above {high} {getattr(self, high):g}: swap them")

    def of_view(self, number: int, group: ViewGroup) -> "Recipe":
        """What is done to view `number` of an image, counted from 0."""
        low, high = group.crop_scale or (self.crop_scale_min, self.crop_scale_max)
        blur = {0: self.blur_first, 1: self.blur_second}.get(number)
        solarise = self.solarise_second if number == 1 else None
        return replace(
            self,
            crop_scale_min=low,
            crop_scale_max=high,
            blur=self.blur if blur is None else blur,
            solarise=self.solarise if solarise is None else solarise,
        )

    def output(self, image_size: tuple[int, int], part: float = 1.0) -> tuple[int, int]:
        """Height and width of a view."""
        height, width = (self.output_size or side for side in image_size)
        if self.quarter_turn and height != width:
            raise FedsslError(
                f"augmentation.quarter_turn: views of {height} x {width} cannot be turned: set it to 0, or "
                "augmentation.output_size, which makes them square"
            )
        return max(1, round(part * height)), max(1, round(part * width))


RECIPES: Registry[Callable[..., Recipe]] = Registry(
    "recipes",
    "augmentation.name",
    {
        "simclr": Recipe,
        # Half the jitter: the paper's recipe for MoCo v1; also what small encoders learn most from in minutes.
        "weak-jitter": partial(Recipe, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1),
        # DINO (Caron et al., 2021), as its code: rates by view; the size and area of local crops are the method's.
        "dino": partial(
            Recipe,
            crop_scale_min=0.4,
            brightness=0.4,
            contrast=0.4,
            saturation=0.2,
            hue=0.1,
            blur=0.5,
            blur_first=1.0,
            blur_second=0.1,
            solarise_second=0.2,
        ),
        # Masked autoencoders (He et al., 2022): a crop and a flip, no colour.
        "crop-flip": partial(Recipe, crop_scale_min=0.2, jitter=0.0, grey=0.0),
        # X-rays: no colour and no blur, and crops that keep most of the image, for a finding may be a few pixels. After
        # MoCo-CXR (Sowrirajan et al., 2021), whose small rotations are here crops of at least half of the image and a
        # light change of brightness and contrast.
        "grey": partial(Recipe, crop_scale_min=0.5, brightness=0.4, contrast=0.4, saturation=0.0, hue=0.0, grey=0.0),
        # Microscopy: no way is up (Veeling et al., 2018), so all eight flips and quarter turns are equally likely; as
        # stains carry meaning, colours change little and never to grey (Kang et al., 2023, also weaken the jitter).
        "gentle": partial(
            Recipe,
            crop_scale_min=0.2,
            brightness=0.4,
            contrast=0.4,
            saturation=0.4,
            hue=0.05,
            grey=0.0,
            upside_down=0.5,
            quarter_turn=0.5,
        ),
    },
)


@dataclass(frozen=True)
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


def apply_parameters(pixels: Tensor, parameters: Parameters, output: tuple[int, int] | None = None) -> Tensor:
    """Crop, flip, turn, jitter, grey, blur, solarise: in this order, without randomness, to `output` (height, width).

    Parameters may be on another device.
    """
    channels, height, width = pixels.shape[1:]
    top, left, crop_height, crop_width, flip = (
        _sent(value, pixels.device)
        for value in (parameters.top, parameters.left, parameters.height, parameters.width, parameters.flip)
    )
    output_height, output_width = output or (height, width)
    rows = crop_matrix(top, crop_height, height, output_height)
    columns = crop_matrix(left, crop_width, width, output_width)
    columns = torch.where(flip.view(-1, 1, 1), columns.flip(1), columns)
    images = resample(pixels.float(), rows, columns.div_(255))  # uint8 to [0, 1] on the way
    _change(images, parameters.upside_down, lambda chosen: chosen.flip(2))
    _change(images, parameters.quarter_turn, lambda chosen: chosen.rot90(1, (2, 3)))
    if channels in (1, 3):  # other channels are no colours
        _jitter(images, parameters)
    if channels == 3:
        _change(images, parameters.grey, lambda chosen: colour.grey(chosen).expand(-1, 3, -1, -1))
    blurred = _where(parameters.blur)
    if len(blurred):
        chosen, sigma = _sent(blurred, images.device), _sent(parameters.sigma[blurred], images.device)
        images.index_copy_(0, chosen, _blur(images.index_select(0, chosen), sigma))
    _change(images, parameters.solarise, lambda chosen: torch.where(chosen >= SOLARISED_FROM, 1 - chosen, chosen))
    return images.clamp_(0, 1).contiguous(memory_format=torch.channels_last)  # clamp: sums of weights round above 1


def _change(images: Tensor, mask: Tensor, change: Callable[[Tensor], Tensor]) -> None:
    """Change in place the images that a mask chooses, if there are any."""
    numbers = _where(mask)
    if len(numbers):
        chosen = _sent(numbers, images.device)
        images.index_copy_(0, chosen, change(images.index_select(0, chosen)))


def _jitter(images: Tensor, parameters: Parameters) -> None:
    """Change the chosen images in place: each gets the four operations in its own order."""
    operations = JITTER if images.shape[1] == 3 else JITTER[:2]  # one channel has no saturation and no hue
    for step in range(len(JITTER)):
        for number, change in enumerate(operations):
            numbers = _where(parameters.jitter & (parameters.order[:, step] == number))
            amounts = _sent(parameters.amounts[:, number].index_select(0, numbers), images.device)
            chosen = _sent(numbers, images.device)
            images.index_copy_(0, chosen, change(images.index_select(0, chosen), amounts))


def _blur(images: Tensor, sigma: Tensor) -> Tensor:
    """Gaussian blur over a tenth of the image, as SimCLR; an odd number of pixels, three or more."""
    height, width = images.shape[2:]
    radius = max(1, min(height, width) // 20)
    return resample(images, blur_matrix(sigma, radius, height), blur_matrix(sigma, radius, width))


def _where(mask: Tensor) -> Tensor:
    """The numbers of the images a mask chooses: only these are worked on."""
    return mask.nonzero().squeeze(1)


def _sent(decided: Tensor, device: torch.device) -> Tensor:
    return decided.to(device, non_blocking=True)
