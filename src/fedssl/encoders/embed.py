"""`fedssl embed`: from image files to features, decoded as in the run and never more than a few batches in memory."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedssl.core.errors import FedsslError
from fedssl.core.extras import need
from fedssl.core.files import write_atomically
from fedssl.core.progress import Progress, silent
from fedssl.data.dataset import Refusal
from fedssl.data.own import arrays, manifest
from fedssl.data.own.cache import pictures
from fedssl.data.own.decoding import Decoding, Picture
from fedssl.data.own.folder import Files
from fedssl.data.own.found import Source, printable
from fedssl.data.own.hugging_face import BY_NAME
from fedssl.data.own.layouts import PLACES, find_images
from fedssl.encoders.feature_files import WRITERS, Writer
from fedssl.evaluation.features import batch_size_for, device_of, mode
from fedssl.networks.inputs import as_input

COLUMNS = {"image": "", "label": "", "client": ""}


@dataclass(frozen=True)
class Batch:
    """Some images in order: their names, pixels and checksums, and what the model makes of them."""

    names: list[str]
    pixels: Tensor  # uint8, N x C x H x W
    sha256: list[str]
    outputs: Tensor  # N x d, on the CPU


@dataclass
class ImageReader:
    """Finds and decodes the images at some places, in the order of the places; remembers what was refused."""

    places: Sequence[str]
    decoding: Decoding
    progress: Progress = silent
    refused: list[Refusal] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.places:
            raise FedsslError(f"say which images: files, {PLACES}")
        self.groups: list[tuple[list[str], Source]] = []  # names and where to read them
        for alone, places in groupby(self.places, _is_image_file):
            if alone:  # together: each source is read by threads of its own
                named = list(places)
                self.groups.append(([printable(one) for one in named], Files([os.path.realpath(one) for one in named])))
            else:
                for place in places:
                    self._find(place)

    def _find(self, place: str) -> None:
        if not Path(place).exists() and not place.startswith(BY_NAME):
            raise FedsslError(f"{printable(place)}: there is no such file or folder")
        matches = find_images(place, "images", "auto", COLUMNS, False)
        self.groups.append(([_name(place, sample.name) for sample in matches.samples], matches.source))
        self.refused += [Refusal(_name(place, one.file), one.reason) for one in matches.refused]

    def __len__(self) -> int:
        """Images to be tried, with those that will be refused when they are opened."""
        return sum(len(names) for names, _ in self.groups)

    def read(self) -> Iterator[tuple[str, Picture]]:
        """(name, picture) of every image that can be used."""
        done = 0
        for names, source in self.groups:
            for name, result in zip(names, pictures(source, range(len(names)), self.decoding), strict=True):
                if isinstance(result, Picture):
                    yield name, result
                else:
                    self.refused.append(Refusal(name, result))
                done += 1
                self.progress("images", done, len(self))


def _is_image_file(place: str) -> bool:
    """A file that is no table or array of images is taken as an image, whatever its name."""
    return Path(place).is_file() and Path(place).suffix.lower() not in (*arrays.ENDINGS, *manifest.ENDINGS)


def _name(place: str, name: str) -> str:
    """As one would type it: below the folder that was named, or beside the table."""
    path = Path(place)
    if path.is_dir():
        return printable(path / name)
    beside = path.suffix.lower() in manifest.ENDINGS
    return printable(path.parent / name) if beside else f"{place}: {name}"


@torch.no_grad()
def embed(model: nn.Module, reader: ImageReader, batch_size: int | None = None) -> Iterator[Batch]:
    """What a model in evaluation mode makes of every image, batch by batch.

    >>> encoder = open_encoder("runs/x")
    >>> for batch in embed(encoder.model, ImageReader(["photos/"], encoder.decoding)):
    ...     print(batch.names[0], tuple(batch.outputs.shape))
    photos/cat/000.png (16, 64)
    """
    size = batch_size or batch_size_for(reader.decoding.image_size, reader.decoding.image_size)
    waiting: list[tuple[str, Picture]] = []
    with mode(model, training=False):
        for one in reader.read():
            waiting.append(one)
            if len(waiting) == size:
                yield _batch(model, waiting)
                waiting = []
        if waiting:
            yield _batch(model, waiting)


def _batch(model: nn.Module, images: list[tuple[str, Picture]]) -> Batch:
    pixels = torch.from_numpy(np.stack([picture.pixels for _, picture in images]))
    outputs = model(as_input(pixels, device_of(model))).float().cpu()
    return Batch([name for name, _ in images], pixels, [picture.sha256 for _, picture in images], outputs)


@dataclass(frozen=True)
class Embedded:
    """How many images have features now, and which have none."""

    images: int
    refused: list[Refusal]
    skipped_file: Path | None


def write_features(
    model: nn.Module,
    reader: ImageReader,
    path: Path,
    about: dict[str, Any],
    batch_size: int | None = None,
) -> Embedded:
    """Names and features into a .parquet or .npz file; images that cannot be used are listed in a file beside it."""
    writer, images = writer_for(path), 0
    path.parent.mkdir(parents=True, exist_ok=True)
    batches = embed(model, reader, batch_size)
    first = next(batches, None)
    if first is None:
        raise FedsslError(f"{', '.join(reader.places)}: no image there can be used{in_short(reader.refused)}")
    with writer(path, first.outputs.shape[1], about) as write:
        for batch in chain([first], batches):
            write(batch.names, batch.outputs.numpy())
            images += len(batch.names)
    return Embedded(images, reader.refused, write_skipped(path, reader.refused))


def writer_for(path: Path) -> Writer:
    """Found out, and refused, before any image is read."""
    if path.suffix.lower() not in WRITERS:
        raise FedsslError(f"-o {path}: features are written to files that end in {' or '.join(WRITERS)}")
    if path.suffix.lower() == ".parquet":
        need("parquet", f"-o {path}")
    return WRITERS[path.suffix.lower()]


def write_skipped(path: Path, refused: Sequence[Refusal]) -> Path | None:
    """NAME.skipped.jsonl beside the result, one line per image; one of an earlier call does not stay."""
    skipped = path.with_name(f"{path.stem}.skipped.jsonl")
    if not refused:
        skipped.unlink(missing_ok=True)
        return None
    write_atomically(skipped, refusal_lines(refused))
    return skipped


def refusal_lines(refused: Sequence[Refusal]) -> str:
    """One line of JSON per image that cannot be used."""
    return "".join(json.dumps({"file": one.file, "reason": one.reason}) + "\n" for one in refused)


def in_short(refused: Sequence[Refusal]) -> str:
    """The number of images that cannot be used and the first of them, for a message."""
    return f" ({len(refused):,} refused, first {refused[0].file}: {refused[0].reason})" if refused else ""
