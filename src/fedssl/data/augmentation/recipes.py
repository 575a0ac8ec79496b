"""Recipes of augmentation: what may be done to a view, how often and how strongly."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from annotated_types import Ge, Interval

from fedssl.core.errors import FedsslError
from fedssl.core.registry import Registry
from fedssl.core.settings import Fraction, NonNegative, Positive
from fedssl.core.view_groups import ViewGroup


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """For photographs: crop, flip, strong colour jitter, grey (Chen et al., 2020); no blur, as in the paper at 32 x 32.

    Rates are probabilities.
    """

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


def _changed(summary: str, **changes: Any) -> Callable[..., Recipe]:
    """SimCLR's recipe with other defaults, and what lists say of it."""
    recipe = partial(Recipe, **changes)
    recipe.__doc__ = summary
    return recipe


RECIPES: Registry[Callable[..., Recipe]] = Registry(
    "recipes",
    "augmentation.name",
    {
        "simclr": Recipe,
        "weak-jitter": _changed(
            "For photographs and short runs: SimCLR's with half the jitter (MoCo v1 in the FedEMA paper).",
            brightness=0.4,
            contrast=0.4,
            saturation=0.4,
            hue=0.1,
        ),
        # As its code: rates by view; the size and area of local crops are the method's.
        "dino": _changed(
            "For photographs with the method dino: large crops, blur and solarisation by view (Caron et al., 2021).",
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
        "crop-flip": _changed(
            "For any images with the method mae: a crop and a flip, no colour (He et al., 2022).",
            crop_scale_min=0.2,
            jitter=0.0,
            grey=0.0,
        ),
        # Crops keep most of the image, for a finding may be a few pixels. The small rotations of MoCo-CXR are here
        # crops of at least half of the image and a light change of brightness and contrast.
        "grey": _changed(
            "For X-rays: no colour, no blur, at least half of the image (after Sowrirajan et al., 2021).",
            crop_scale_min=0.5,
            brightness=0.4,
            contrast=0.4,
            saturation=0.0,
            hue=0.0,
            grey=0.0,
        ),
        # No way is up, so all eight flips and quarter turns are equally likely; as stains carry meaning, colours change
        # little and never to grey (Kang et al. also weaken the jitter).
        "gentle": _changed(
            "For microscopy: all flips, quarter turns (Veeling et al., 2018), little colour (after Kang et al., 2023).",
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
