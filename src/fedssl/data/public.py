"""Public images, which everybody may see: chosen without a look at labels, and at no client."""

import numpy as np

from fedssl.data.partition import IntArray
from fedssl.errors import FedsslError
from fedssl.seeding import numpy_stream

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
