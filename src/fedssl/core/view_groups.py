"""The views of an image that a method wants: how many, and of which kind."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ViewGroup:
    """Views that are made alike; what a group does not say is left to the run's recipe.

    >>> multi_crop = (ViewGroup(2), ViewGroup(8, part=0.5, crop_scale=(0.05, 0.4)))  # 2 global, 8 local
    """

    count: int = 2
    part: float = 1.0  # the side of a view, as a part of the recipe's
    crop_scale: tuple[float, float] | None = None  # area of the crop, as a part of the image; None: the recipe's


PAIR = (ViewGroup(2),)
