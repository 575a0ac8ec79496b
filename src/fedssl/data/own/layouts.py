"""A user's own images as a dataset: found in one of five layouts, decoded once, with labels and clients if known."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Interval
from pydantic import AfterValidator

from fedssl.core.errors import FedsslError
from fedssl.core.extras import need
from fedssl.core.progress import Progress, silent
from fedssl.core.registry import Registry
from fedssl.core.seeding import numpy_stream
from fedssl.core.settings import Count
from fedssl.data.dataset import Dataset, Images, Original, Refusal, kept
from fedssl.data.folders import data_folder
from fedssl.data.holdout import HeldOut, ZeroIsNone, with_validation
from fedssl.data.own import arrays, manifest
from fedssl.data.own.arrays import find_in_array
from fedssl.data.own.cache import DecodedImages, decoded
from fedssl.data.own.decoding import LARGEST_GREY, SHOWN, Decoding, Resampling
from fedssl.data.own.folder import Files, find_in_folder
from fedssl.data.own.found import Found, Part, Sample, by_number, printable, shortened
from fedssl.data.own.hugging_face import BY_NAME, find_in_dataset, is_saved_dataset
from fedssl.data.own.manifest import find_in_manifest
from fedssl.data.partition import Owners

Grey = Annotated[int, Interval(ge=1, le=LARGEST_GREY)]
PLACES = "a folder, a .npz or .npy file, a .csv or .parquet manifest, a saved Hugging Face dataset, or hf:NAME"


@dataclass(frozen=True)
class Layout:
    """One way in which images lie at a place: how they are found there, given the columns and whether to read labels.

    `of` says what the place must be; "" leaves that to `find`. The last entry that recognises a place is taken for it.
    """

    find: Callable[[str, Mapping[str, str], bool], Found]
    of: Literal["folder", "file", ""] = ""
    recognises: Callable[[str], bool] = lambda _: False
    need: Callable[[str], None] = lambda _: None  # refuses where a reader is not installed


def _in_manifest(place: str, columns: Mapping[str, str], labels: bool) -> Found:
    names = {"path": "image", "client": "client", "label": "label"}
    given = {name: columns[key] or name for name, key in names.items()}
    return find_in_manifest(Path(place), {**given, "split": "split"}, labels=labels)


def _need_parquet(place: str) -> None:
    if place.lower().endswith(".parquet"):
        need("parquet", printable(place))


LAYOUTS: Registry[Layout] = Registry(
    "layouts",
    "data.layout",
    {
        "folder": Layout(find_in_folder, "folder", lambda _: True),
        "silos": Layout(partial(find_in_folder, silos=True), "folder"),
        "array": Layout(find_in_array, "file", lambda place: Path(place).suffix.lower() in arrays.ENDINGS),
        "manifest": Layout(
            _in_manifest, "file", lambda place: Path(place).suffix.lower() in manifest.ENDINGS, _need_parquet
        ),
        "hugging-face": Layout(
            find_in_dataset,
            recognises=lambda place: place.startswith(BY_NAME) or is_saved_dataset(Path(place)),
            need=lambda place: need("hf", printable(place)),
        ),
    },
    base=Layout,
)


def absolute(place: str) -> str:
    """So that a run's config.toml finds the images from any folder; the name of a Hugging Face dataset stays."""
    return os.path.abspath(os.path.expanduser(place)) if place and not place.startswith(BY_NAME) else place  # noqa: PTH100, PTH111


Place = Annotated[str, AfterValidator(absolute)]


def folder(
    progress: Progress = silent,
    *,
    path: Place = "",  # a folder or file of any layout
    layout: Annotated[str, LAYOUTS] = "auto",  # detected; silos must be said
    image_size: Count = 64,  # the middle square, resized; auto: as the weights to start from
    resampling: Resampling = "bilinear",  # or bicubic, antialiased; auto, the default with init.encoder: as its weights
    channels: Count = 3,  # grey becomes three equal channels; 1: colour becomes grey; others: arrays, no jitter
    fit: Literal["crop", "stretch"] = "crop",  # stretch: the whole image, out of proportion
    white: Grey = LARGEST_GREY,  # this value of 16-bit grey becomes 255; 12-bit sensors: 4095
    labels: bool = True,  # false: all labels are passed over
    image_column: str = "",  # the array or column, where it is called otherwise
    label_column: str = "",  # likewise
    client_column: str = "",  # likewise
    eval_train: Place = "",  # to learn from, of any layout; default: the training images, if they have labels
    eval_test: Place = "",  # to test with, of any layout
    test_fraction: HeldOut = 0.0,  # instead: a share of every class is held out, the same whatever the seed
    strict: bool = False,  # true: fails at the first file that cannot be used
    validation_images: ZeroIsNone = 0,  # labelled training images that take the place of test images
) -> Dataset:
    """Your own images: a folder, silos, an array, a manifest or a Hugging Face dataset; decoded once."""
    _need_readers(eval_train, eval_test)
    columns = {"image": image_column, "label": label_column, "client": client_column}
    decoding = Decoding(image_size, channels, fit, white, resampling=resampling)
    reader = _Reader(decoding=decoding, strict=strict, progress=progress)
    content = reader.find(path, "data.path", layout, columns, labels)
    if test_fraction and eval_test:
        raise FedsslError("data.test_fraction: there are test images already, in data.eval_test: set it to 0")
    if test_fraction:
        content = _with_test_part(content, test_fraction)
    train = reader.read(content, "train")
    learn = reader.read_evaluation(content, "eval_train", eval_train, columns)
    test = reader.read_evaluation(content, "eval_test", eval_test, columns)
    if not train.samples:
        raise FedsslError(f"data.path: {content.place}: no image there can be used{reader.in_short()}")
    evaluated = _evaluated_classes(train, learn, test)
    classes = evaluated + [name for name in train.class_names() if name not in evaluated]
    dataset = Dataset(
        name="folder",
        train=train.images(classes),
        test=test.images(evaluated) if test else None,
        eval_train=learn.images(evaluated) if learn else None,
        source=f"{len(train.samples):,} images of {content.place}",
        owners=_owners(content.clients, train.samples),
        test_owners=_owners(content.clients, test.samples) if test else None,
        originals=train.originals(),
        test_originals=test.originals() if test else (),
        refused=tuple(reader.refused),
        remarks=(
            *content.remarks,
            *_enlarged(train.originals(), image_size),
            *_without_colours(channels),
            *reader.remarks(),
        ),
    )
    return with_validation(dataset, validation_images)


def _enlarged(originals: Sequence[Original], size: int) -> Iterator[str]:
    """A remark on images that hold less than their pixels will say."""
    small = [one for one in originals if min(one.width, one.height) < size]
    if small:
        least = min(small, key=lambda one: one.width * one.height)
        yield (
            f"{len(small):,} of {len(originals):,} images are smaller than data.image_size = {size} and were enlarged; "
            f"the smallest, {shortened(least.name)}, is {least.width} x {least.height}"
        )


def _without_colours(channels: int) -> Iterator[str]:
    if channels not in SHOWN:
        yield f"images of {channels} channels are no colours: views have no colour jitter and are never grey"


@kept("sites")
def sites(
    progress: Progress = silent,
    *,
    image_size: Count = 64,
    resampling: Resampling = "bilinear",
    channels: Count = 3,
    fit: Literal["crop", "stretch"] = "crop",
    white: Grey = LARGEST_GREY,
    eval_train: Place = "",
    eval_test: Place = "",
) -> Dataset:
    """Images that stay at the sites of a deployment (`fedssl client --data`); here may be some for evaluation."""
    if bool(eval_train) != bool(eval_test):
        raise FedsslError("data.eval_train, data.eval_test: the server has no other images: give both, or none")
    _need_readers(eval_train, eval_test)
    decoding = Decoding(image_size, channels, fit, white, resampling=resampling)
    reader = _Reader(decoding=decoding, strict=False, progress=progress)
    nowhere = Found("", [], Files([]))
    learn = reader.read_evaluation(nowhere, "eval_train", eval_train, {})
    test = reader.read_evaluation(nowhere, "eval_test", eval_test, {})
    classes = _evaluated_classes(learn, learn, test) if learn else []
    return Dataset(
        name="sites",
        train=Images(torch.empty(0, channels, image_size, image_size, dtype=torch.uint8)),
        test=test.images(classes) if test else None,
        eval_train=learn.images(classes) if learn else None,
        source="images at their own sites",
        test_originals=test.originals() if test else (),
        refused=tuple(reader.refused),
    )


@dataclass(frozen=True)
class _Decoded:
    """The images of one part that can be used."""

    samples: list[Sample]
    cached: DecodedImages

    @property
    def labelled(self) -> bool:
        return all(sample.label is not None for sample in self.samples)

    def class_names(self) -> list[str]:
        return sorted({str(sample.label) for sample in self.samples}, key=by_number) if self.labelled else []

    def images(self, classes: Sequence[str]) -> Images:
        if not self.labelled:
            return self.cached.images()
        numbers = {name: number for number, name in enumerate(classes)}
        labels = torch.tensor([numbers[str(sample.label)] for sample in self.samples], dtype=torch.int64)
        return self.cached.images(labels, tuple(classes))

    def originals(self) -> tuple[Original, ...]:
        used = (outcome for outcome in self.cached.outcomes if not outcome.refused)
        return tuple(
            Original(name=sample.name, sha256=one.sha256, width=one.width, height=one.height, kind=one.kind)
            for sample, one in zip(self.samples, used, strict=True)
        )


@dataclass(kw_only=True)
class _Reader:
    """Decodes the parts of a dataset, all in the same way, and remembers what was refused."""

    decoding: Decoding
    strict: bool
    progress: Progress
    refused: list[Refusal] = field(default_factory=list)
    places: list[DecodedImages] = field(default_factory=list)

    def find(self, place: str, field: str, layout: str, columns: Mapping[str, str], labels: bool) -> Found:
        content = find_images(place, field, layout, columns, labels)
        for one in content.refused:
            self._refuse(one)
        return content

    def read(self, content: Found, part: Part, *, all_parts: bool = False) -> _Decoded:
        numbers = [number for number, sample in enumerate(content.samples) if all_parts or sample.part == part]

        def refuse(number: int, reason: str) -> None:
            sample = content.samples[number]
            self._refuse(Refusal(sample.name, reason, sample.client or ""))

        cached = decoded(content.source, numbers, self.decoding, self.progress, "decoding images", refuse)
        self.places.append(cached)
        used = zip(numbers, cached.outcomes, strict=True)
        return _Decoded([content.samples[number] for number, outcome in used if not outcome.refused], cached)

    def read_evaluation(self, content: Found, part: Part, place: str, columns: Mapping[str, str]) -> _Decoded | None:
        """The images at the place if one is given, else those that the training data hold out; None: there are none."""
        if place:
            content = self.find(place, f"data.{part}", "auto", columns, True)
            separate = any(sample.part == part for sample in content.samples)
            read = self.read(content, part, all_parts=not separate)
            if not read.samples or not read.labelled:
                raise FedsslError(
                    f"data.{part}: {content.place}: {len(read.samples)} images, but evaluation needs labelled ones: "
                    "subfolders named by class, a label column, or an array of labels"
                )
            return read
        if not any(sample.part == part for sample in content.samples):
            return None
        read = self.read(content, part)
        return read if read.samples and read.labelled else None

    def _refuse(self, one: Refusal) -> None:
        if self.strict:
            raise FedsslError(f"{one.file}: {one.reason} (data.strict is on: remove or mend the file)")
        self.refused.append(one)

    def in_short(self) -> str:
        if not self.refused:
            return ""
        first = "; ".join(f"{shortened(one.file)}: {one.reason}" for one in self.refused[:3])
        return f" ({len(self.refused):,} refused: {first}{'; …' if len(self.refused) > 3 else ''})"

    def remarks(self) -> list[str]:
        size = sum(place.num_bytes for place in self.places) / 1e6
        remarks = [f"the decoded images are {size:,.1f} MB in {self.places[0].folder.parent}"]
        return remarks + ([f"files that cannot be used are left out{self.in_short()}"] if self.refused else [])


def find_images(place: str, field: str, layout: str, columns: Mapping[str, str], labels: bool) -> Found:
    """What a place holds in its layout; `field` is the setting or option that named the place."""
    if not place:
        raise FedsslError(f"{field}: say where your images are: {PLACES}")
    try:
        place.encode()
    except UnicodeEncodeError:
        raise FedsslError(
            f"{field}: {printable(place)}: its name is no UTF-8: rename it, or make a link to it"
        ) from None
    path = Path(place)
    # Settings that came from elsewhere were checked where they were read: here the layout is as good as typed.
    chosen = _recognised(place) if layout == "auto" else LAYOUTS.typed(layout)
    if (chosen.of == "folder" and not path.is_dir()) or (chosen.of == "file" and not path.is_file()):
        raise FedsslError(f"{field}: {printable(place)}: there is no such {chosen.of}: name {PLACES}")
    if chosen.of == "folder" and data_folder().resolve().is_relative_to(path.resolve()):
        raise FedsslError(
            f"{field}: {printable(place)}: the cache {data_folder()} lies inside, and nothing is ever written among "
            "your images: name another folder in FEDSSL_DATA"
        )
    return chosen.find(place, columns, labels)


def _need_readers(*places: str) -> None:
    """What places of evaluation need, before the training images are decoded, which may take an hour."""
    for place in filter(None, places):
        _recognised(place).need(place)


def _recognised(place: str) -> Layout:
    return next(layout for layout in reversed(list(LAYOUTS.values())) if layout.recognises(place))


def _with_test_part(content: Found, fraction: float) -> Found:
    """A share of every class held out to test with; the same images whatever the seed of the run."""
    training = [number for number, sample in enumerate(content.samples) if sample.part == "train"]
    if not training or any(content.samples[number].label is None for number in training):
        why = "".join(f" ({remark})" for remark in content.remarks)
        raise FedsslError(
            f"data.test_fraction: {content.place}: the images have no labels to test with{why}: set it to 0"
        )
    by_class: dict[str, list[int]] = {}
    for number in training:
        by_class.setdefault(str(content.samples[number].label), []).append(number)
    samples = list(content.samples)
    for name, members in by_class.items():
        order = numpy_stream(0, "test part", name).permutation(members)
        for number in order[: min(max(round(fraction * len(members)), 1), len(members) - 1)]:
            samples[number] = replace(samples[number], part="eval_test")
    return replace(content, samples=samples)


def _owners(clients: tuple[str, ...], samples: list[Sample]) -> Owners | None:
    """Who holds these samples; None where nobody said so of them all."""
    numbers = {name: number for number, name in enumerate(clients)}
    if not clients or any(sample.client not in numbers for sample in samples):
        return None
    return Owners(np.array([numbers[str(s.client)] for s in samples], np.int64), clients)


def _evaluated_classes(train: _Decoded, learn: _Decoded | None, test: _Decoded | None) -> list[str]:
    """The classes that evaluation learns: they are numbered first, so that their numbers have no gaps."""
    known = (learn or train).class_names()
    if test and not known:
        raise FedsslError(
            "data.eval_train: the test images have labels, the training images none: name labelled images to learn from"
        )
    for name in test.class_names() if test else []:
        if name not in known:
            raise FedsslError(
                f"data.eval_test: the class {shortened(name)!r} is not among those to learn from "
                f"({', '.join(map(shortened, known[:10]))}{' …' if len(known) > 10 else ''})"
            )
    return known
