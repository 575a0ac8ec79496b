"""The datasets by name: what a config may ask for, and where they are kept on this machine."""

from collections.abc import Callable
from dataclasses import dataclass

from fedssl.data.images import Images
from fedssl.data.synthetic import synthetic_images
from fedssl.settings import Count


@dataclass(frozen=True)
class Dataset:
    """Training and test images, and in words where they came from."""

    name: str
    train: Images
    test: Images
    source: str


def synthetic(
    *, image_size: Count = 32, train_images: Count = 2000, test_images: Count = 500, classes: Count = 10, seed: int = 0
) -> Dataset:
    """Textured shapes, made on the spot; the class is shape and texture, not colour."""
    return Dataset(
        name="synthetic",
        train=synthetic_images(train_images, classes, image_size, seed, "train"),
        test=synthetic_images(test_images, classes, image_size, seed, "test"),
        source=f"made from seed {seed}",
    )


DATASETS: dict[str, Callable[..., Dataset]] = {"synthetic": synthetic}
