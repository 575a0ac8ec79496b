"""Manifests of two sets of photos that are not part of fedssl, for the trials of results/photos and results/folder.

    python -m scripts.photo_manifests grocery photos/grocery/dataset
    python -m scripts.photo_manifests waste photos/waste/WasteImagesDataset

GroceryStoreDataset has parts train and test; each coarse class is at one of five clients. WasteImagesDataset has none:
a fifth of each class is for tests, the rest is shared out unevenly over five clients (Dirichlet, 0.5).
"""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

CLIENTS = 5
SAME = {"Brown-Cap-Mushroom": "Mushroom"}  # one class, under two names in the set's parts train and test
ENDINGS = (".jpg", ".jpeg", ".png")
Row = tuple[str, str, str, str]  # path, label, client, split


def photos(folder: Path) -> list[Path]:
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.suffix.lower() in ENDINGS)


def grocery(folder: Path) -> Iterator[Row]:
    """The label is the coarse class: train/Fruit/Apple/Pink-Lady/1.jpg is an Apple."""
    paths = [path for path in photos(folder) if path.parts[0] in ("train", "test")]
    places = {label: number % CLIENTS for number, label in enumerate(sorted({path.parts[2] for path in paths}))}
    for path in paths:
        name = path.parts[2]
        yield str(path), SAME.get(name, name), f"client-{places[name]}", path.parts[0]


def waste(folder: Path) -> Iterator[Row]:
    stream = np.random.default_rng(0)
    paths = photos(folder)
    for label in sorted({path.parts[0] for path in paths}):
        own = [path for path in paths if path.parts[0] == label]
        shares = stream.dirichlet([0.5] * CLIENTS)
        for path in own:
            split = "test" if stream.random() < 0.2 else "train"
            yield str(path), label, f"client-{stream.choice(CLIENTS, p=shares)}", split


SETS = {"grocery": grocery, "waste": waste}


def write(name: str, folder: Path) -> Path:
    path = folder / "all.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "client", "split"), *SETS[name](folder)])
    return path


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in SETS:
        sys.exit(__doc__)
    print(write(sys.argv[1], Path(sys.argv[2])))
