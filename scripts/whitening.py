"""Makes src/fedssl/networks/whitening.safetensors: the filters of the frozen stem, from CIFAR-100's training images.

    python -m scripts.whitening cifar-100-python.tar.gz

CIFAR-100 is public: no client's image enters. Run once; the file is part of the package, so that every site has the
same bits (eigenvectors differ in the last bits, and in sign, from one linear algebra library to the next).
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from fedssl.core.progress import silent
from fedssl.data.augmentation.colour import grey
from fedssl.data.standard.cifar import CIFAR100, read_records, to_images
from fedssl.data.standard.download import read_files

TARGET = Path(__file__).resolve().parents[1] / "src" / "fedssl" / "networks" / "whitening.safetensors"
KEPT = {3: 24, 1: 8}  # of 27 and 9 directions: the last ones are mostly noise of the camera and of JPEG
SOFT = 5e-4  # added to every variance: directions of less are not blown up to the size of the others


def whitening(images: Tensor) -> dict[str, Tensor]:
    """The mean of every channel, and for the 3x3 patches the first principal directions over their deviations."""
    channels = images.shape[1]
    mean = images.mean(dim=(0, 2, 3), dtype=torch.float64)
    covariance, size = torch.zeros(9 * channels, 9 * channels, dtype=torch.float64), 0
    for part in images.split(1000):
        patches = F.unfold(part.double() - mean.view(-1, 1, 1), 3).transpose(1, 2).flatten(0, 1)
        covariance, size = covariance + patches.T @ patches, size + len(patches)
    values, vectors = torch.linalg.eigh(covariance / size)
    first = torch.arange(len(values)).flip(0)[: KEPT[channels]]
    filters = vectors[:, first] / (values[first] + SOFT).sqrt()
    print(f"{channels} channels: deviations", values.flip(0).sqrt())
    return {"mean": mean.float(), "filters": filters.T.reshape(-1, channels, 3, 3).float().contiguous()}


def main(archive: str) -> None:
    records = read_records(read_files(Path(archive), CIFAR100, silent), CIFAR100)
    images = to_images(records, "train", CIFAR100).pixels.float().div_(255)
    made = {"colour": whitening(images), "grey": whitening(grey(images))}
    save_file({f"{kind}.{name}": tensor for kind, parts in made.items() for name, tensor in parts.items()}, TARGET)


if __name__ == "__main__":
    main(sys.argv[1])
