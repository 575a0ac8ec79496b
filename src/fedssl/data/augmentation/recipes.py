"""Recipes of augmentation: what may be done to a view, how often and how strongly."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

from annotated_types import Ge, Interval

from fedssl.core.errors import FedsslError
from fedssl.core.registry import Registry
from fedssl.core.settings import Fraction, NonNegative, Positive
from fedssl.core.view_groups import ViewGroup


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
