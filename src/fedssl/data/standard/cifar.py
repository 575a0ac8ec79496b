"""CIFAR-10 and CIFAR-100: what their files are, and how each published layout is brought to one checked form.

That form is the official binary layout, a record for each image: its label byte (CIFAR-100: coarse, then fine), then
3 x 32 x 32 pixels. Its MD5 sums are known, so every source is checked against one table whatever layout it came in.
"""

import hashlib
import io
import json
import pickle
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
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


@dataclass(frozen=True, kw_only=True)
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
        return {f"{batch.stem}{ending}" for batch in self.batches for ending in READERS} | set(PNG_LABELS.values())


def read_records(files: Mapping[str, bytes], spec: CifarSpec) -> dict[str, bytes]:
    """Batch stem -> checked records, from files in any one layout; an error names the file that is missing or wrong."""
    for ending, read in READERS.items():
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
    present = max(READERS, key=lambda ending: sum(f"{batch.stem}{ending}" in files for batch in spec.batches))
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
        class_names=spec.class_names,
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
READERS: dict[str, Callable[[Mapping[str, bytes], CifarSpec], dict[str, bytes]]] = {
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


def _published(name: str) -> CifarSpec:
    facts = tomllib.loads((resources.files(__package__) / "cifar.toml").read_text(encoding="utf-8"))[name]
    batches = tuple(Batch(*batch) for batch in facts.pop("batches"))
    classes = tuple(facts.pop("class_names").split())
    lists: dict[str, Any] = {key: tuple(facts.pop(key)) for key in ("label_keys", "folders")}
    return CifarSpec(name=name, class_names=classes, batches=batches, **lists, **facts)


CIFAR10, CIFAR100 = _published("cifar10"), _published("cifar100")
