"""A look at one's own images before training: what was found, refused or doubled, and two pictures of it."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedssl.core.errors import FedsslError
from fedssl.core.progress import Progress, silent
from fedssl.data.dataset import Dataset, Images
from fedssl.data.own.found import shortened
from fedssl.data.partition import Partition
from fedssl.experiment.build.data import build_dataset, build_partition, check_partition, left_out
from fedssl.experiment.config.layers import load_config
from fedssl.experiment.config.schema import Config
from fedssl.reports.client_views import client_views
from fedssl.reports.pictures import holdings_picture, views_picture

LISTED = 10  # refused files, duplicates and clients that are printed, each
DARK = 16  # of 255: where 16-bit images have nothing brighter, their white is not 65535; 4095 comes out as 16


@dataclass(frozen=True)
class Inspection:
    """What `fedssl run folder` would train on, and what it would say against it."""

    config: Config
    dataset: Dataset
    partition: Partition
    problem: str  # "": a run would start

    @property
    def titles(self) -> list[str]:
        return [self.partition.title(client) for client in range(len(self.partition.clients))]


def inspect_data(path: str, overrides: Mapping[str, Any] | None = None, progress: Progress = silent) -> Inspection:
    """Decodes everything into the cache, as a run would; a file that cannot be used is noted, never an error."""
    config = load_config("folder", {**(overrides or {}), "data.path": path, "data.strict": False})
    dataset = build_dataset(config.data, progress)
    partition = build_partition(config, dataset)
    try:
        check_partition(config, dataset, partition)
    except FedsslError as error:
        return Inspection(config, dataset, partition, str(error))
    return Inspection(config, dataset, partition, "")


def describe(inspection: Inspection) -> Iterator[str]:
    """The findings, a line each."""
    dataset, sizes = inspection.dataset, inspection.partition.sizes()
    yield f"{dataset.source}, brought to {dataset.train.shape_text}"
    yield from _originals(dataset)
    yield f"{len(sizes)} clients, {min(sizes):,} to {max(sizes):,} images each{_classes(dataset.train)}"
    for title, size in list(zip(inspection.titles, sizes, strict=True))[:LISTED]:
        yield f"  {title}: {size:,} images"
    yield from _and_more(len(sizes))
    for name in left_out(dataset, inspection.partition):
        yield f"left out: {name}, which has 1 image"
    if dataset.labelled is None:
        yield "evaluation: none, for there are no labelled test images (data.eval_test, data.test_fraction)"
    else:
        train, test = dataset.labelled
        yield f"evaluation: learns from {len(train):,} labelled images, tests with {len(test):,}"
    for remark in dataset.remarks:
        yield f"note: {remark}"
    yield f"refused: {len(dataset.refused):,} files"
    for one in dataset.refused[:LISTED]:
        yield f"  {shortened(one.file)}: {one.reason}"
    yield from _and_more(len(dataset.refused))
    yield from _duplicates(inspection)


def write_pictures(inspection: Inspection, folder: Path) -> list[Path]:
    """holdings.png, client x class, and views.png, two augmented views of a few images of each client."""
    folder.mkdir(parents=True, exist_ok=True)
    train, partition, augmentation = inspection.dataset.train, inspection.partition, inspection.config.augmentation
    counts = np.array(partition.sizes()).reshape(-1, 1)
    names = ["images"]
    if train.labels is not None:
        counts, names = partition.class_counts(train.labels.numpy(), train.num_classes), list(train.class_names)
    holdings_picture(folder / "holdings.png", counts, inspection.titles, names)
    recipe = augmentation.build()
    shown = client_views(train.pixels, partition, recipe, inspection.config.run.seed)
    titles = [partition.title(one.client) for one in shown]
    views_picture(folder / "views.png", shown, titles, len(partition.clients))
    return [folder / "holdings.png", folder / "views.png"]


def duplicates(inspection: Inspection) -> tuple[list[list[str]], list[list[str]]]:
    """Names of images with the same bytes: (at two or more clients, in training and test images)."""
    holder = {int(number): client for client, held in enumerate(inspection.partition.clients) for number in held}
    same: dict[str, list[int]] = {}
    for number, original in enumerate(inspection.dataset.originals):
        if number in holder:
            same.setdefault(original.sha256, []).append(number)
    titles, originals = inspection.titles, inspection.dataset.originals
    name = {number: f"{originals[number].name} at {titles[client]}" for number, client in holder.items()}
    across = [
        [name[number] for number in numbers]
        for numbers in same.values()
        if len({holder[number] for number in numbers}) > 1
    ]
    tested: dict[str, list[str]] = {}
    for original in inspection.dataset.test_originals:
        tested.setdefault(original.sha256, []).append(f"{original.name} of the test images")
    leaked = [[name[number] for number in same[digest]] + tested[digest] for digest in tested if digest in same]
    return across, leaked


def _duplicates(inspection: Inspection) -> Iterator[str]:
    across, leaked = duplicates(inspection)
    for groups, what in ((across, "images are at two clients or more"), (leaked, "test images are trained on too")):
        yield f"duplicates: {len(groups):,} {what}"
        for names in groups[:LISTED]:
            yield "  " + " = ".join(map(shortened, names[:4])) + (" = …" if len(names) > 4 else "")
        yield from _and_more(len(groups))


def _originals(dataset: Dataset) -> Iterator[str]:
    sizes = Counter((one.width, one.height) for one in dataset.originals)
    small, large = (f(sizes, key=lambda size: size[0] * size[1]) for f in (min, max))
    (width, height), count = sizes.most_common(1)[0]
    yield (
        f"sizes: {small[0]} x {small[1]} to {large[0]} x {large[1]}; {count:,} of {len(dataset.originals):,} are "
        f"{width} x {height}"
    )
    yield "kinds: " + ", ".join(
        f"{count:,} {kind}" for kind, count in Counter(o.kind for o in dataset.originals).most_common()
    )
    deep = [number for number, one in enumerate(dataset.originals) if " I" in one.kind][:100]
    if deep and max(int(dataset.train.pixels[number].max()) for number in deep) <= DARK:
        yield "note: the 16-bit images are nearly black: say which value is white, for 12 bits data.white=4095"


def _classes(images: Images) -> str:
    if images.labels is None:
        return ", no classes"
    names = ", ".join(shortened(name, 40) for name in images.class_names[:LISTED])
    return f"; {images.num_classes} classes: {names}{' …' if images.num_classes > LISTED else ''}"


def _and_more(count: int) -> Iterator[str]:
    if count > LISTED:
        yield f"  … and {count - LISTED:,} more"
