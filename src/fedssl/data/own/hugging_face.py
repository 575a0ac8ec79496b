"""Datasets of the Hugging Face library, on disk (`save_to_disk`) or by name; the library is an extra."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from fedssl.core.errors import FedsslError
from fedssl.core.extras import need
from fedssl.data.own.decoding import RefusedError
from fedssl.data.own.folder import Files, open_image
from fedssl.data.own.found import Found, Part, Read, Sample, by_number, printable

BY_NAME = "hf:"
MARKS = ("dataset_dict.json", "state.json")  # one of them lies in a folder that `save_to_disk` wrote
PARTS: dict[str, Part] = {"train": "train", "test": "eval_test"}  # other splits are not used


@dataclass(frozen=True)
class Examples:
    """A source of the images of one or more splits, one after the other."""

    splits: list[Any]  # datasets.Dataset whose only column is the image, not decoded
    column: str
    may_lead_out: bool  # a dataset by name may point to files that the library has fetched

    def stamps(self, numbers: list[int]) -> Iterator[str]:
        for split in self.splits:
            yield f"{split._fingerprint} {len(split)} {self.column}"
            files = Files([file["filename"] for file in split.cache_files])
            yield from files.stamps(list(range(len(files.paths))))
        yield from map(str, numbers)

    @contextmanager
    def opened(self) -> Iterator[Read]:
        places = [(split, number) for split in self.splits for number in range(len(split))]

        def read(number: int) -> Any:
            split, row = places[number]
            image = split[row][self.column] or {}
            if image.get("bytes"):
                return BytesIO(image["bytes"])
            if image.get("path") and self.may_lead_out:
                return open_image(os.path.realpath(image["path"]))
            raise RefusedError("the dataset does not hold the image itself")

        yield read


def is_saved_dataset(path: Path) -> bool:
    return any((path / mark).is_file() for mark in MARKS)


def find_in_dataset(place: str, columns: Mapping[str, str], labels: bool = True) -> Found:
    """Split "train" (or the only one) to train on, split "test" to evaluate with; `columns` as of an array."""
    need("hf", printable(place))
    splits, unused = _splits(place)
    first = next(iter(splits.values()))
    image = _column(place, first.features, "image", columns["image"])
    label = _column(place, first.features, "label", columns["label"]) if labels else ""
    client = columns["client"]
    if client and client not in first.features:
        raise FedsslError(f"{printable(place)}: it has no column {client!r} (data.client_column)")
    samples = [
        Sample(f"{name}, image {number}", owner, shows, PARTS.get(name, "train"))
        for name, split in splits.items()
        for number, (owner, shows) in enumerate(zip(_texts(split, client), _texts(split, label), strict=True))
    ]
    source = Examples([_images(split, image) for split in splits.values()], image, place.startswith(BY_NAME))
    clients = {sample.client for sample in samples if sample.client is not None and sample.part == "train"}
    remarks = (f"the splits {', '.join(unused)} are not used",) if unused else ()
    return Found(printable(place), samples, source, clients=tuple(sorted(clients, key=by_number)), remarks=remarks)


def _library() -> Any:
    import datasets

    return datasets


def _splits(place: str) -> tuple[dict[str, Any], list[str]]:
    """(the splits that are used, the names of the others)."""
    library = _library()
    try:
        if place.startswith(BY_NAME):
            loaded = library.load_dataset(place.removeprefix(BY_NAME))
        else:
            loaded = library.load_from_disk(place)
    except Exception as error:  # the library and what is below it raise many kinds
        reason = str(error).partition("\n")[0]
        raise FedsslError(f"{printable(place)}: the dataset cannot be loaded ({reason})") from None
    if not isinstance(loaded, dict):
        return {"train": loaded}, []
    if len(loaded) == 1:
        return {"train": next(iter(loaded.values()))}, []
    used = {name: split for name, split in loaded.items() if name in PARTS}
    if "train" not in used:
        raise FedsslError(f"{printable(place)}: it has the splits {', '.join(loaded)}, none of them is 'train'")
    return used, [name for name in loaded if name not in PARTS]


def _column(place: str, features: Mapping[str, Any], kind: str, wanted: str) -> str:
    """The column by its name, else by its type: the only one of images, the only one of classes; "" for no labels."""
    if wanted:
        if wanted not in features:
            raise FedsslError(f"{printable(place)}: it has no column {wanted!r} (data.{kind}_column)")
        return wanted
    library = _library()
    wanted_type = library.Image if kind == "image" else library.ClassLabel
    fitting = [name for name, feature in features.items() if isinstance(feature, wanted_type)]
    if kind == "label" and not fitting and "label" in features:
        fitting = ["label"]
    if len(fitting) == 1 or (kind == "label" and not fitting):
        return fitting[0] if fitting else ""
    raise FedsslError(
        f"{printable(place)}: {len(fitting)} of its columns ({', '.join(features)}) may be the {kind}: say which with "
        f"data.{kind}_column"
    )


def _images(split: Any, column: str) -> Any:
    return split.select_columns([column]).cast_column(column, _library().Image(decode=False))


def _texts(split: Any, column: str) -> list[str | None]:
    """A column as texts; class numbers by their names, and −1, which stands for no class, as None."""
    if not column:
        return [None] * len(split)
    feature, values = split.features[column], split.select_columns([column])[column]
    if isinstance(feature, _library().ClassLabel):
        values = [None if value is None or value < 0 else feature.int2str(value) for value in values]
    return [None if value is None else printable(str(value)) for value in values]
