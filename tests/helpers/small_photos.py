"""A folder of labelled photos, some of them bad, and a run that was trained on it."""

import numpy as np

from fedssl.experiment.experiment import load
from tests.helpers.pictures import write

COLOURS = {"blue": (30, 40, 220), "green": (30, 200, 40), "red": (220, 40, 30)}
BAD = {"blue/broken.jpg": "not an image", "red/cut.png": "damaged", "red/note.txt": "no ending of an image"}


def write_photos(root, each=8, size=20, seed=0):
    """A subfolder for each colour, with noise enough that no two photos are the same."""
    noise = np.random.default_rng(seed)
    for name, colour in COLOURS.items():
        for number in range(each):
            pixels = np.array(colour) + noise.integers(-25, 26, (size, size + 4, 3))
            write(root / name / f"{number:03}.png", pixels.clip(0, 255).astype(np.uint8))
    return root


def spoil(root):
    """Three files that cannot be used."""
    (root / "blue" / "broken.jpg").write_bytes(b"no image")
    whole = (root / "red" / "000.png").read_bytes()
    (root / "red" / "cut.png").write_bytes(whole[: len(whole) // 2])
    (root / "red" / "note.txt").write_text("shopping list")


def train(root, folder, **settings):
    """One short round at two clients."""
    small = {"data.image_size": 16, "network.width": 4, "network.head_hidden": 16, "network.head_out": 8}
    short = {"rounds": 1, "threads": 1, "partition.num_clients": 2, "evaluation.linear_probe": False}
    load("folder+fedema", {"data.path": str(root), **small, **short, **settings}).run(folder)
    return folder


def photos_and_run(folder):
    """`photos`, one of them spoilt, and `run`, trained on them."""
    write_photos(folder / "photos")
    spoil(folder / "photos")
    train(folder / "photos", folder / "run")
    return folder
