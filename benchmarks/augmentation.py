"""Views a second on one thread: fedssl's batch augmentation against kornia's and against PIL image by image.

    PYTHONPATH=src python benchmarks/augmentation.py [--batch 128] [--size 32] [--repeats 30]

The three take turns on the same images with the same recipe, so that a noisy machine is noisy for all; the median of
the repeats counts. Kornia draws one order of the colour operations a batch, ours and PIL one an image.
"""

import argparse
import math
import random
import statistics
import time
from collections.abc import Callable

import kornia.augmentation as K
import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps

from fedssl.data.augmentations import Recipe, augment
from fedssl.data.synthetic import synthetic_images

RECIPE = Recipe()
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


def pil_views(size: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """The recipe image by image, as torchvision's transforms do it on PIL images."""

    def views(pixels: torch.Tensor) -> torch.Tensor:
        arrays = pixels.permute(0, 2, 3, 1).contiguous().numpy()
        changed = np.stack([np.asarray(pil_view(Image.fromarray(array), size)) for array in arrays])
        return torch.from_numpy(changed).permute(0, 3, 1, 2).float().div_(255)

    return views


def pil_view(image: Image.Image, size: int) -> Image.Image:
    left, top, width, height = pil_crop(*image.size)
    image = image.resize((size, size), Image.Resampling.BILINEAR, (left, top, left + width, top + height))
    if random.random() < RECIPE.flip:
        image = ImageOps.mirror(image)
    if random.random() < RECIPE.jitter:
        factors = [random.uniform(max(0, 1 - x), 1 + x) for x in JITTER[:3]]
        for number in random.sample(range(4), 4):
            if number == 3:
                image = pil_hue(image, random.uniform(-RECIPE.hue, RECIPE.hue))
            else:
                enhance = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)[number]
                image = enhance(image).enhance(factors[number])
    return image.convert("L").convert("RGB") if random.random() < RECIPE.grey else image


def pil_crop(full_width: int, full_height: int) -> tuple[int, int, int, int]:
    for _ in range(10):
        area = full_width * full_height * random.uniform(*SCALE)
        ratio = math.exp(random.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        width, height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < width <= full_width and 0 < height <= full_height:
            return random.randint(0, full_width - width), random.randint(0, full_height - height), width, height
    return 0, 0, full_width, full_height


def pil_hue(image: Image.Image, turn: float) -> Image.Image:
    hue, saturation, value = image.convert("HSV").split()
    shifted = np.asarray(hue) + np.array(turn * 255).astype(np.int16).astype(np.uint8)
    return Image.merge("HSV", (Image.fromarray(shifted), saturation, value)).convert("RGB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    pixels = synthetic_images(options.batch, 10, options.size, 0, "benchmark").pixels
    generator = torch.Generator().manual_seed(0)
    makers: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "fedssl": lambda batch: augment(batch, RECIPE, generator),
        "kornia": kornia_views(options.size),
        "PIL": pil_views(options.size),
    }
    seconds: dict[str, list[float]] = {name: [] for name in makers}
    for repeat in range(options.repeats + 3):
        for name, make in makers.items():
            start = time.perf_counter()
            make(pixels)
            if repeat >= 3:  # the first three warm up
                seconds[name].append(time.perf_counter() - start)
    rates = {name: options.batch / statistics.median(times) for name, times in seconds.items()}
    print(f"batch {options.batch}, {options.size} x {options.size}, one thread, torch {torch.__version__}")
    print(f"{'':8} {'views/s':>9} {'ms/batch':>9}  fedssl is faster by")
    for name, rate in rates.items():
        print(f"{name:8} {rate:9,.0f} {1000 * options.batch / rate:9.1f}  {rates['fedssl'] / rate:.2f} x")


if __name__ == "__main__":
    main()
