"""Target 8: views a second on one thread, fedssl's augmentation against PIL, torchvision's v2 and kornia.

    python -m benchmarks.augmentation [--batch 128] [--size 32] [--repeats 30]

They take turns on the same images with the same recipe, and the least disturbed repeat counts. PIL and torchvision
work image by image, v2 on uint8 tensors; kornia on batches, with one order of the colour operations for each. What is
not installed is left out. torchvision that fits the torch of constraints.txt may not be: the rows with it are then
measured, both sides, in the environment of `make check-timm`, if that is there.
"""

import argparse
import json
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from PIL import Image

from benchmarks.measuring import Row, faster, not_measured, take_turns
from benchmarks.plain import augment_image, to_tensor
from fedssl.core.memory import keep_freed_memory
from fedssl.data.augmentation.recipes import Recipe
from fedssl.data.augmentation.views import augment
from fedssl.data.standard.synthetic import synthetic_images

Views = Callable[[torch.Tensor], torch.Tensor]
RECIPE = Recipe()
# Times as fast as PIL and torchvision. At 32 px 2.9 times PIL was measured before larger images had a path of their
# own, which was to change nothing here: a tenth of it is noise. Of torchvision nothing was asked for there.
NEEDED = {32: 2.6, 96: 1.5, 128: 1.5, 224: 2.0}
SCALE = (RECIPE.crop_scale_min, RECIPE.crop_scale_max)
RATIO = (RECIPE.crop_ratio_min, RECIPE.crop_ratio_max)
JITTER = (RECIPE.brightness, RECIPE.contrast, RECIPE.saturation, RECIPE.hue)
ROOT = Path(__file__).parents[1]
WITH_TORCHVISION = ROOT / ".venv-timm/bin/python"


def fedssl_views(size: int) -> Views:  # noqa: ARG001
    generator = torch.Generator().manual_seed(0)
    return lambda pixels: augment(pixels, RECIPE, generator)


def kornia_views(size: int) -> Views:
    """The recipe by kornia; from uint8, and to channels last as the network wants it."""
    import kornia.augmentation as K

    pipeline = torch.nn.Sequential(
        K.RandomResizedCrop((size, size), scale=SCALE, ratio=RATIO),
        K.RandomHorizontalFlip(p=RECIPE.flip),
        K.ColorJitter(*JITTER, p=RECIPE.jitter),
        K.RandomGrayscale(p=RECIPE.grey),
    )
    return lambda pixels: pipeline(pixels.float().div_(255)).contiguous(memory_format=torch.channels_last)


def pil_views(size: int) -> Views:  # noqa: ARG001
    """The recipe image by image, as torchvision's transforms do it on PIL images."""

    def views(pixels: torch.Tensor) -> torch.Tensor:
        arrays = pixels.permute(0, 2, 3, 1).contiguous().numpy()
        return torch.stack([to_tensor(augment_image(Image.fromarray(array), RECIPE)) for array in arrays])

    return views


def torchvision_views(size: int) -> Views:
    """The recipe by torchvision's v2 on uint8 tensors, image by image: floats come last, as its pages advise."""
    from torchvision.transforms import v2

    pipeline = v2.Compose(
        [
            v2.RandomResizedCrop((size, size), scale=SCALE, ratio=RATIO, antialias=True),
            v2.RandomHorizontalFlip(p=RECIPE.flip),
            v2.RandomApply([v2.ColorJitter(*JITTER)], p=RECIPE.jitter),
            v2.RandomGrayscale(p=RECIPE.grey),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )
    return lambda pixels: torch.stack([pipeline(image) for image in pixels])


MAKERS = {"fedssl": fedssl_views, "PIL": pil_views, "torchvision": torchvision_views, "kornia": kornia_views}


def installed(names: Sequence[str]) -> list[str]:
    return [name for name in names if find_spec(name)]


def milliseconds(size: int, batch: int, repeats: int, names: Sequence[str]) -> dict[str, float]:
    """What a view costs by each of them."""
    pixels = synthetic_images(batch, 10, size, 0, "benchmark").pixels
    seconds, _ = take_turns({name: partial(MAKERS[name](size), pixels) for name in names}, repeats)
    return {name: 1000 * time / batch for name, time in seconds.items()}


def rows() -> list[Row]:
    rows = rows_here(["PIL", *installed(["kornia"])])
    if find_spec("torchvision"):
        return rows + rows_here(["torchvision"])
    return rows + rows_elsewhere(WITH_TORCHVISION)


def rows_here(names: Sequence[str]) -> list[Row]:
    """Against PIL and torchvision from 96 px on as needed, against kornia not slower."""
    torch.manual_seed(0)
    keep_freed_memory()
    rows = []
    for size, needed in NEEDED.items():
        timed = [name for name in names if size > 64 or name == "PIL"]
        taken = milliseconds(size, max(16, 2 * 224 * 224 // size**2), 8, ["fedssl", *timed]) if timed else {}
        for name in timed:
            limit = 1.0 if name == "kornia" else needed
            rows.append(
                faster(f"8 views at {size} px", titled(name), "ms per view", taken[name], taken["fedssl"], limit)
            )
    return rows


def titled(name: str) -> str:
    return "torchvision v2" if name == "torchvision" else name


def rows_elsewhere(python: Path) -> list[Row]:
    """Both sides in another environment, whose versions the rows name."""
    if not python.exists():
        return [not_measured("8 views, torchvision v2", "not measured: not installed, and no .venv-timm", "≥ 2")]
    command = [str(python), "-m", "benchmarks.augmentation", "--torchvision-rows"]
    ours = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}"}  # this code, whatever is installed there
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=ours).stdout
    return [Row(**row) for row in json.loads(output.splitlines()[-1])]


def torchvision_rows() -> str:
    import torchvision

    ours, theirs = (module.__version__.partition("+")[0] for module in (torch, torchvision))
    versions = f"torchvision {theirs} v2, torch {ours}"
    return json.dumps([asdict(row) | {"against": versions} for row in rows_here(["torchvision"])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--torchvision-rows", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.torchvision_rows:
        print(torchvision_rows())
        return
    torch.manual_seed(0)
    names = ["fedssl", "PIL", *installed(["torchvision", "kornia"])]
    taken = milliseconds(options.size, options.batch, options.repeats, names)
    rates = {name: 1000 / time for name, time in taken.items()}
    print(f"batch {options.batch}, {options.size} x {options.size}, one thread, torch {torch.__version__}")
    print(f"{'':12} {'views/s':>9} {'ms/batch':>9}  fedssl is faster by")
    for name, rate in rates.items():
        print(f"{name:12} {rate:9,.0f} {1000 * options.batch / rate:9.1f}  {rates['fedssl'] / rate:.2f} x")


if __name__ == "__main__":
    main()
