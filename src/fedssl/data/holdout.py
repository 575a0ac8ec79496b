"""Images that no client trains on: labelled and public ones, and those held out for validation."""

from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Interval

from fedssl.core.errors import FedsslError
from fedssl.core.seeding import numpy_stream
from fedssl.data.dataset import Dataset
from fedssl.data.partition import IntArray

HeldOut = Annotated[float, Interval(ge=0, lt=1)]


def choose_labelled(
    labels: IntArray | None,
    num_images: int,
    seed: int,
    *,
    labelled_fraction: HeldOut = 0.0,
    labelled_choice: Literal["stratified", "first"] = "stratified",
) -> IntArray:
    """The numbers of the held-out images, sorted: a share of every class at random, or the first ones of the files.

    Stratified: round(fraction · n_c) of class c, at least one. A smaller fraction gives a subset of a larger one, so
    a run that held out 10 % can be evaluated with 1 % too.
    """
    if labelled_fraction == 0:
        return np.empty(0, np.int64)
    if labelled_choice == "first":  # as the authors' code
        return np.arange(_share(labelled_fraction, num_images), dtype=np.int64)
    if labels is None:
        raise FedsslError(
            "data.labelled_fraction needs labels to choose from every class and the dataset has none: "
            'set it to 0 or data.labelled_choice to "first"'
        )
    chosen = []
    for c in np.unique(labels):
        members = numpy_stream(seed, "labelled", int(c)).permutation(np.flatnonzero(labels == c))
        chosen.append(members[: max(_share(labelled_fraction, len(members)), 1)])
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def _share(fraction: float, count: int) -> int:
    return int(np.floor(fraction * count + 0.5))


LEFT = 2  # images, at least, that clients must be left with


def choose_public(num_images: int, seed: int, count: int, taken: IntArray) -> IntArray:
    """`count` numbers at random of images that are not `taken` for something else, sorted."""
    free = np.setdiff1d(np.arange(num_images, dtype=np.int64), taken)
    if count and count > len(free) - LEFT:
        raise FedsslError(
            f"method.public_images: {count} of {len(free)} images would leave the clients nothing: "
            "lower it, or take them from another dataset (method.public_data)"
        )
    return np.sort(numpy_stream(seed, "public images").choice(free, size=count, replace=False))


ZeroIsNone = Annotated[int, Ge(0)]


def with_validation(dataset: Dataset, count: int) -> Dataset:
    """The dataset whose test images are `count` of its training images, which nobody trains on; 0: as it is.

    Whatever looks at test images then looks at these. They do not depend on a run's seed: all trials share them.
    """
    if count == 0:
        return dataset
    train, originals = dataset.train, dataset.originals
    if train.labels is None:
        raise FedsslError(
            "data.validation_images: they are chosen by their labels, and the images have none: set it to 0"
        )
    if count >= len(train):
        raise FedsslError(f"data.validation_images: {count} of {len(train)} images leave none to train on: lower it")
    held = choose_validation(train.labels.numpy(), count)
    rest = np.setdiff1d(np.arange(len(train)), held)
    return replace(
        dataset,
        train=train.select(rest),
        test=train.select(held),
        owners=dataset.owners and replace(dataset.owners, clients=dataset.owners.clients[rest]),
        test_owners=dataset.owners and replace(dataset.owners, clients=dataset.owners.clients[held]),
        originals=tuple(originals[i] for i in rest) if originals else (),
        test_originals=tuple(originals[i] for i in held) if originals else (),
        remarks=(
            *dataset.remarks,
            f"accuracy is that on {count} labelled training images held out: no test image is read",
        ),
    )


def choose_test_part(labels: IntArray, fraction: float) -> IntArray:
    """The numbers of a share of every class, sorted: at least one image of it, and one is left to learn from."""
    chosen = [np.empty(0, np.int64)]
    for c in np.unique(labels):
        members = numpy_stream(0, "test part", int(c)).permutation(np.flatnonzero(labels == c))
        chosen.append(members[: min(max(_share(fraction, len(members)), 1), len(members) - 1)])
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def choose_validation(labels: IntArray, count: int) -> IntArray:
    """The numbers of `count` images, sorted: of every class its share at random, to within one image."""
    turn = np.empty(len(labels))
    for c in np.unique(labels):
        members = numpy_stream(0, "validation", int(c)).permutation(np.flatnonzero(labels == c))
        turn[members] = (np.arange(len(members)) + 0.5) / len(members)
    return np.sort(np.argsort(turn, kind="stable")[:count]).astype(np.int64)
