"""Images in memory, and a dataset as a run takes it: what to train on, what to evaluate with, who holds what."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedssl.core.errors import FedsslError
from fedssl.core.progress import Progress, silent
from fedssl.data.partition import Owners

CHUNK_BYTES = 1 << 25

Indices = Tensor | Sequence[int] | np.ndarray


@dataclass(frozen=True)
class Images:
    """uint8 images N x C x H x W, with labels or without; pre-training gets `unlabelled()` only."""

    pixels: Tensor  # uint8, NCHW, may be memory mapped
    labels: Tensor | None = None  # int64, N
    _: KW_ONLY
    class_names: tuple[str, ...] = ()
    known_fingerprint: str = ""  # of pixels that a checked cache holds: gigabytes need not be read to know them
    release: Callable[[], None] | None = None  # of a memory map: gives its pages back to the system

    def __post_init__(self) -> None:
        if self.pixels.dtype != torch.uint8 or self.pixels.ndim != 4:
            raise FedsslError(
                "Images.pixels must be uint8 of shape images x channels x height x width, "
                f"not {self.pixels.dtype} of shape {tuple(self.pixels.shape)}"
            )
        if self.labels is None:
            return
        if self.labels.dtype != torch.int64 or self.labels.shape != self.pixels.shape[:1]:
            raise FedsslError(
                f"Images.labels must be int64, one for each of {len(self.pixels)} images, "
                f"not {self.labels.dtype} of shape {tuple(self.labels.shape)}"
            )
        if len(self.labels) and int(self.labels.min()) < 0:
            raise FedsslError(f"Images.labels must be 0 or more, found {int(self.labels.min())}")
        if self.class_names and len(self.labels) and int(self.labels.max()) >= len(self.class_names):
            raise FedsslError(
                f"Images.labels has the class {int(self.labels.max())} but Images.class_names has only "
                f"{len(self.class_names)} names"
            )

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def num_classes(self) -> int:
        """How many classes: by name if they have names, else by the largest label; 0 for unlabelled images."""
        if self.class_names or self.labels is None or not len(self.labels):
            return len(self.class_names)
        return int(self.labels.max()) + 1

    @property
    def channels(self) -> int:
        return self.pixels.shape[1]

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width)."""
        return self.pixels.shape[2], self.pixels.shape[3]

    @property
    def shape_text(self) -> str:
        return " x ".join(map(str, self.pixels.shape[1:]))

    def select(self, indices: Indices) -> "Images":
        """The images with these numbers, in this order, copied."""
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        first, last = (int(chosen.min()), int(chosen.max())) if chosen.numel() else (0, -1)
        if first < 0 or last >= len(self):
            raise FedsslError(
                f"image numbers from {first} to {last} asked of {len(self)} images: "
                "was the partition made for another dataset?"
            )
        labels = None if self.labels is None else self.labels[chosen]
        return Images(self.pixels[chosen], labels, class_names=self.class_names)

    def unlabelled(self) -> "Images":
        """The same pixels (shared, not copied) without labels or class names."""
        return replace(self, labels=None, class_names=())

    def chosen(self, indices: Indices) -> "Chosen":
        """The images with these numbers, in this order, not copied."""
        return Chosen(self.pixels, torch.as_tensor(indices, dtype=torch.int64), self.release)


@dataclass(frozen=True)
class Chosen:
    """Some images of a set by their numbers: gathered batch by batch, so that a memory map is never copied whole."""

    pixels: Tensor
    numbers: Tensor  # int64
    release: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    def index_select(self, dim: int, index: Tensor) -> Tensor:
        """As `Tensor.index_select` of a tensor that holds the chosen images only."""
        batch = self.pixels.index_select(dim, self.numbers[index])
        if self.release:
            self.release()  # else all pages that were ever read would count as memory of this process
        return batch


class Pixels(Protocol):
    """What training asks of a client's images: a tensor has it, and so have chosen images of a memory map."""

    def __len__(self) -> int: ...
    def index_select(self, dim: int, index: Tensor, /) -> Tensor: ...


def fingerprint(images: Images, progress: Progress = silent) -> str:
    """SHA-256 of shape and pixels, in hex: a run record says with it what the images were; labels do not enter."""
    if images.known_fingerprint:
        return images.known_fingerprint
    digest = hashlib.sha256(repr(tuple(images.pixels.shape)).encode())
    at_once = max(1, CHUNK_BYTES // max(1, images.pixels[:1].numel()))  # a memory-mapped set need not fit in memory
    for start in range(0, len(images), at_once):
        digest.update(images.pixels[start : start + at_once].cpu().contiguous().numpy().data)
        if images.release:
            images.release()
        progress("reading them back", min(start + at_once, len(images)), len(images))
    return digest.hexdigest()


@dataclass(frozen=True)
class Refusal:
    """A file that is not used, and why."""

    file: str
    reason: str
    client: str = ""


@dataclass(frozen=True, kw_only=True)
class Original:
    """What an image was before it was decoded."""

    name: str
    sha256: str  # of its file
    width: int
    height: int
    kind: str


Load = TypeVar("Load", bound=Callable[..., Any])
Where = Literal["everywhere", "sites", "here"]


def kept(at: Where) -> Callable[[Load], Load]:
    """Says of a function that loads a dataset where its images are: public, at the sites of a deployment, or here."""

    def say(load: Load) -> Load:
        load.where = at  # type: ignore[attr-defined]
        return load

    return say


def where(load: Callable[..., Any]) -> Where:
    """Where the images of a dataset are; here, at places that its settings name, unless it says otherwise."""
    return getattr(load, "where", "here")


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Training and test images, in words where they came from, and what the data say about their holders."""

    name: str
    train: Images
    test: Images | None
    source: str
    eval_train: Images | None = None  # labelled images that evaluation learns from; None: the training images
    owners: Owners | None = None  # of the training images
    test_owners: Owners | None = None  # of the test images, where the data say so
    originals: tuple[Original, ...] = ()  # of the training images, where these were files
    test_originals: tuple[Original, ...] = ()
    refused: tuple[Refusal, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def labelled(self) -> tuple[Images, Images] | None:
        """(training, test) images of evaluation; None where labels are missing, and with them any accuracy."""
        train = self.train if self.eval_train is None else self.eval_train
        if self.test is None or self.test.labels is None or train.labels is None:
            return None
        return train, self.test
