"""Validation images: labelled training images that stand in for the test images while settings are being chosen."""

from dataclasses import replace
from typing import Annotated

import numpy as np
from annotated_types import Ge

from fedssl.data.dataset import Dataset
from fedssl.data.partition import IntArray
from fedssl.errors import FedsslError
from fedssl.seeding import numpy_stream

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
        originals=tuple(originals[i] for i in rest) if originals else (),
        test_originals=tuple(originals[i] for i in held) if originals else (),
        remarks=(
            *dataset.remarks,
            f"accuracy is that on {count} labelled training images held out: no test image is read",
        ),
    )


def choose_validation(labels: IntArray, count: int) -> IntArray:
    """The numbers of `count` images, sorted: of every class its share at random, to within one image."""
    turn = np.empty(len(labels))
    for c in np.unique(labels):
        members = numpy_stream(0, "validation", int(c)).permutation(np.flatnonzero(labels == c))
        turn[members] = (np.arange(len(members)) + 0.5) / len(members)
    return np.sort(np.argsort(turn, kind="stable")[:count]).astype(np.int64)
