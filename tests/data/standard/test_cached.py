import pytest
import torch

from fedssl.core.errors import FedsslError
from fedssl.core.settings import settings_of, summary_of
from fedssl.data import DATASETS
from fedssl.data.dataset import Images
from fedssl.data.standard.cache import save_images
from fedssl.data.standard.cached import cifar10

NAMES = tuple("abcdefghij")


@pytest.fixture
def cached(monkeypatch, tmp_path):
    """Stands for CIFAR-10: 40 training and 20 test images; the first pixel of an image is its number."""
    monkeypatch.setenv("FEDSSL_DATA", str(tmp_path))
    for part, count in (("train", 40), ("test", 20)):
        pixels = torch.zeros(count, 3, 32, 32, dtype=torch.uint8)
        pixels[:, 0, 0, 0] = torch.arange(count)
        labels = torch.arange(count).flip(0) % 10
        save_images(tmp_path / "cifar10" / f"{part}.safetensors", Images(pixels, labels, class_names=NAMES), "a test")


def test_all_images(cached):
    data = cifar10()
    assert (data.name, data.source, len(data.train), len(data.test)) == ("cifar10", "a test", 40, 20)
    assert data.train.class_names == NAMES


def test_fewer_are_the_first_of_each_class_in_the_order_of_the_files(cached):
    data = cifar10(train_images=20, test_images=10)
    assert data.train.pixels[:, 0, 0, 0].tolist() == list(range(20))
    assert data.train.labels.bincount().tolist() == [2] * 10
    assert data.test.pixels[:, 0, 0, 0].tolist() == list(range(10))


@pytest.mark.parametrize(("field", "count", "most"), [("train_images", 25, 40), ("test_images", 30, 20)])
def test_a_number_that_cannot_be_balanced(cached, field, count, most):
    with pytest.raises(FedsslError, match=rf"data\.{field} is {count}: .* multiple of 10 classes, at most {most}"):
        cifar10(**{field: count})


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_not_fetched_yet(monkeypatch, tmp_path, name):
    monkeypatch.setenv("FEDSSL_DATA", str(tmp_path))
    with pytest.raises(FedsslError) as caught:
        DATASETS[name]()
    assert str(caught.value) == f"{name} is not in {tmp_path}: run `fedssl data fetch {name}`"


@pytest.mark.parametrize("name", DATASETS)
def test_settings_can_be_read_from_the_loader(name):
    own = {"folder": {"path", "image_size"}, "sites": {"image_size", "eval_test"}}
    assert own.get(name, {"train_images", "test_images"}) <= set(settings_of(DATASETS[name]))
    assert summary_of(DATASETS[name])
