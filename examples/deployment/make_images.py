"""Writes synthetic images, which stand for a site's own: python make_images.py FOLDER SEED-TEXT [COUNT]."""

import sys
import zlib
from pathlib import Path

from PIL import Image

from fedssl.data.standard.synthetic import synthetic_images


def main(folder: Path, text: str, count: int = 128) -> None:
    folder.mkdir(parents=True)
    images = synthetic_images(count, 10, 32, zlib.crc32(text.encode()), "train")
    for number, pixels in enumerate(images.pixels.permute(0, 2, 3, 1).numpy()):
        Image.fromarray(pixels).save(folder / f"image-{number:04d}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:4]))
