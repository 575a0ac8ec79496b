import hashlib

import numpy as np
import pytest
import torch

from fedssl.core.errors import FedsslError
from fedssl.data.dataset import Images, fingerprint

PIXELS = torch.arange(4 * 3 * 2 * 5, dtype=torch.uint8).view(4, 3, 2, 5)
LABELS = torch.tensor([2, 0, 1, 0])


def test_properties():
    images = Images(PIXELS, LABELS)
    assert (len(images), images.channels, images.image_size, images.num_classes) == (4, 3, (2, 5), 3)
    assert Images(PIXELS, LABELS, class_names=("a", "b", "c", "d")).num_classes == 4
    assert Images(PIXELS).num_classes == 0


@pytest.mark.parametrize("indices", [[3, 0], torch.tensor([3, 0]), np.array([3, 0], dtype=np.int32), (3, 0)])
def test_select_keeps_the_order_asked_for(indices):
    chosen = Images(PIXELS, LABELS, class_names=("a", "b", "c")).select(indices)
    assert torch.equal(chosen.pixels, torch.stack([PIXELS[3], PIXELS[0]]))
    assert chosen.labels is not None
    assert chosen.labels.tolist() == [0, 2]
    assert chosen.class_names == ("a", "b", "c")


@pytest.mark.parametrize("indices", [[4], [-1, 2]])
def test_select_outside_the_images(indices):
    with pytest.raises(FedsslError, match="asked of 4 images"):
        Images(PIXELS).select(indices)


def test_select_nothing():
    assert len(Images(PIXELS, LABELS).select([])) == 0


def test_unlabelled_has_neither_labels_nor_names_and_shares_the_pixels():
    images = Images(PIXELS, LABELS, class_names=("a", "b", "c")).unlabelled()
    assert images.labels is None
    assert images.class_names == ()
    assert images.pixels.data_ptr() == PIXELS.data_ptr()


@pytest.mark.parametrize(
    ("pixels", "labels", "names", "text"),
    [
        (PIXELS.float(), None, (), "torch.float32"),
        (PIXELS[0], None, (), r"shape \(3, 2, 5\)"),
        (PIXELS, LABELS.int(), (), "torch.int32"),
        (PIXELS, LABELS[:3], (), "each of 4 images"),
        (PIXELS, LABELS - 1, (), "found -1"),
        (PIXELS, LABELS, ("a", "b"), "only 2 names"),
    ],
)
def test_bad_images(pixels, labels, names, text):
    with pytest.raises(FedsslError, match=text):
        Images(pixels, labels, class_names=names)


def test_fingerprint_is_of_shape_and_pixels_only():
    expected = hashlib.sha256(b"(4, 3, 2, 5)" + bytes(range(120))).hexdigest()
    assert fingerprint(Images(PIXELS, LABELS)) == expected
    assert fingerprint(Images(PIXELS)) == expected
    assert fingerprint(Images(PIXELS.view(4, 3, 5, 2))) != expected
    assert fingerprint(Images(PIXELS.to(memory_format=torch.channels_last))) == expected


def test_fingerprint_by_chunks():
    pixels = torch.randint(0, 256, (4100, 1, 2, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    expected = hashlib.sha256(b"(4100, 1, 2, 2)" + pixels.numpy().tobytes()).hexdigest()
    assert fingerprint(Images(pixels)) == expected
