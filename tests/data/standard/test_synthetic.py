import numpy as np
import pytest
import torch

from fedssl.core.errors import FedsslError
from fedssl.data.dataset import fingerprint
from fedssl.data.standard.cached import synthetic
from fedssl.data.standard.synthetic import CLASS_NAMES, SHAPES, TEXTURES


def test_sizes_and_balance():
    data = synthetic(image_size=24, train_images=50, test_images=20, classes=10)
    assert data.train.pixels.shape == (50, 3, 24, 24)
    assert data.train.labels.bincount().tolist() == [5] * 10
    assert data.test.labels.bincount().tolist() == [2] * 10
    assert data.train.class_names[:6] == (
        "striped disc",
        "striped square",
        "striped triangle",
        "striped cross",
        "striped ring",
        "checked disc",
    )


def test_by_seed_and_train_is_not_test():
    first, again, other = (synthetic(train_images=40, test_images=40, seed=seed) for seed in (3, 3, 4))
    assert fingerprint(first.train) == fingerprint(again.train)
    assert torch.equal(first.train.labels, again.train.labels)
    assert len({fingerprint(images) for images in (first.train, first.test, other.train, other.test)}) == 4


def test_too_many_classes():
    assert synthetic(classes=len(CLASS_NAMES), train_images=40, test_images=20).train.num_classes == 20
    with pytest.raises(FedsslError, match=r"dataset\.classes is 21 .* only 20"):
        synthetic(classes=21)


def test_mean_colour_does_not_give_the_class():
    """Nearest class mean of the average colour must stay near chance (10 %)."""
    data = synthetic(train_images=1000, test_images=500)
    train, test = (images.pixels.float().mean(dim=(2, 3)) for images in (data.train, data.test))
    centres = torch.stack([train[data.train.labels == c].mean(0) for c in range(10)])
    right = (torch.cdist(test, centres).argmin(1) == data.test.labels).float().mean()
    assert right < 0.2


@pytest.mark.parametrize(
    ("shape", "centre", "corner"),
    [
        ("disc", True, False),
        ("square", True, True),
        ("triangle", True, False),
        ("cross", True, False),
        ("ring", False, False),
    ],
)
def test_shapes_differ_where_they_should(shape, centre, corner):
    u, v = np.array([0.0, 0.8], np.float32), np.array([0.0, 0.8], np.float32)
    assert SHAPES[shape](u, v).tolist() == [centre, corner]


def test_textures_differ_where_they_should():
    a, b = np.array([0.5, 1.5, 0.5, 1.5]), np.array([0.5, 0.5, 1.5, 1.5])
    assert TEXTURES["striped"](a, b).tolist() == [True, False, True, False]
    assert TEXTURES["checked"](a, b).tolist() == [True, False, False, True]
    assert TEXTURES["dotted"](np.array([1.0, 0.0]), np.array([1.0, 0.0])).tolist() == [True, False]
    assert TEXTURES["plain"](a, b).all()
