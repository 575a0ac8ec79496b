"""The labelled images of semi-supervised evaluation: set aside before the training set is dealt out to clients."""

from typing import Annotated, Literal

import numpy as np
from annotated_types import Interval

from fedssl.data.partition import IntArray
from fedssl.errors import FedsslError
from fedssl.seeding import numpy_stream

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
