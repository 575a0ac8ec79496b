"""Target 8: views a second on one thread, fedssl's augmentation against kornia's and against PIL image by image.

    python -m benchmarks.augmentation [--batch 128] [--size 32] [--repeats 30]

The three take turns on the same images with the same recipe, and the least disturbed repeat counts. Kornia draws one
order of the colour operations a batch, ours and PIL one an image. PIL image by image is what torchvision's transforms
do; its v2 on tensors cannot be installed beside the torch that fedssl is tested with.
"""

import argparse
from collections.abc import Callable
from functools import partial

import kornia.augmentation as K
import torch
from PIL import Image

from benchmarks.measuring import Row, faster, take_turns
from benchmarks.plain import augment_image, to_tensor
from fedssl.core.memory import keep_freed_memory
from fedssl.data.augmentation.recipes import Recipe
from fedssl.data.augmentation.views import augment
from fedssl.data.standard.synthetic import synthetic_images

RECIPE = Recipe()
NEEDED = {96: 1.5, 128: 1.5, 224: 2.0}  # times as fast as PIL
SCALE = (RECIPE.crop_scale_min, RECIPE.crop_scale_max)
RATIO = (RECIPE.crop_ratio_min, RECIPE.crop_ratio_max)
JITTER = (RECIPE.brightness, RECIPE.contrast, RECIPE.saturation, RECIPE.hue)


def kornia_views(size: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """The recipe by kornia; from uint8, and to channels last as the network wants it."""
    pipeline = torch.nn.Sequential(
        K.RandomResizedCrop((size, size), scale=SCALE, ratio=RATIO),
        K.RandomHorizontalFlip(p=RECIPE.flip),
        K.ColorJitter(*JITTER, p=RECIPE.jitter),
        K.RandomGrayscale(p=RECIPE.grey),
    )
    return lambda pixels: pipeline(pixels.float().div_(255)).contiguous(memory_format=torch.channels_last)


def pil_views(pixels: torch.Tensor) -> torch.Tensor:
    """The recipe image by image, as torchvision's transforms do it on PIL images."""
    arrays = pixels.permute(0, 2, 3, 1).contiguous().numpy()
    return torch.stack([to_tensor(augment_image(Image.fromarray(array), RECIPE)) for array in arrays])


def milliseconds(size: int, batch: int, repeats: int) -> dict[str, float]:
    """What a view costs by each of the three."""
    pixels = synthetic_images(batch, 10, size, 0, "benchmark").pixels
    generator = torch.Generator().manual_seed(0)
    makers: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "fedssl": lambda batch: augment(batch, RECIPE, generator),
        "kornia": kornia_views(size),
        "PIL": pil_views,
    }
    seconds, _ = take_turns({name: partial(make, pixels) for name, make in makers.items()}, repeats)
    return {name: 1000 * time / batch for name, time in seconds.items()}


def rows() -> list[Row]:
    """Sizes up to 64 have no limit here: their path did not change."""
    torch.manual_seed(0)
    keep_freed_memory()
    found = []
    for size, needed in NEEDED.items():
        taken = milliseconds(size, max(16, 2 * 224 * 224 // size**2), 8)
        for name in ("PIL", "kornia"):
            limit = needed if name == "PIL" else 1.0
            found.append(faster(f"8 views at {size} px", name, "ms per view", taken[name], taken["fedssl"], limit))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    taken = milliseconds(options.size, options.batch, options.repeats)
    rates = {name: 1000 / time for name, time in taken.items()}
    print(f"batch {options.batch}, {options.size} x {options.size}, one thread, torch {torch.__version__}")
    print(f"{'':8} {'views/s':>9} {'ms/batch':>9}  fedssl is faster by")
    for name, rate in rates.items():
        print(f"{name:8} {rate:9,.0f} {1000 * options.batch / rate:9.1f}  {rates['fedssl'] / rate:.2f} x")


if __name__ == "__main__":
    main()
