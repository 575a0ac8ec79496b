import numpy as np
import pytest
import torch

from fedssl.core.errors import FedsslError
from fedssl.data.dataset import Images
from fedssl.data.holdout import choose_validation
from fedssl.data.own.layouts import folder
from fedssl.data.standard.cache import save_images
from fedssl.data.standard.cached import cifar10
from fedssl.experiment.build.parts import build
from fedssl.experiment.experiment import load
from tests.helpers.pictures import write_folder
from tests.helpers.small import TINY, held_by


def rows(pixels):
    return {image.numpy().tobytes() for image in pixels}


def test_every_class_gives_its_share_and_the_sum_is_exact():
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [200, 50, 4]))
    chosen = choose_validation(labels, 64)
    assert len(set(chosen)) == 64
    assert abs(np.bincount(labels[chosen]) - 64 * np.array([200, 50, 4]) / 254).max() < 1
    assert not np.array_equal(chosen, np.flatnonzero(np.isin(labels, [0, 1, 2]))[:64])


def test_a_run_trains_on_other_images_and_is_measured_on_these():
    given = {**TINY, "data.train_images": 200, "data.validation_images": 40}
    plain, parts, other = (build(load("smoke", settings).config) for settings in (TINY, given, {**given, "seed": 7}))
    watched = parts.monitor.data
    assert torch.equal(watched.test.labels.bincount(), torch.full((10,), 4))
    assert not rows(watched.test.pixels) & rows(plain.dataset.test.pixels)  # no test image
    assert not rows(watched.test.pixels) & rows(watched.train.pixels)
    assert not rows(watched.test.pixels) & {row for k in range(4) for row in rows(held_by(parts, k))}
    assert torch.equal(watched.test.pixels, other.monitor.data.test.pixels)  # whatever the seed
    assert any("no test image is read" in remark for remark in parts.remarks)


def test_the_same_images_however_many_are_trained_on(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDSSL_DATA", str(tmp_path))
    for part, seed in (("train", 0), ("test", 1)):
        pixels = torch.randint(0, 256, (100, 3, 4, 4), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
        images = Images(pixels, torch.arange(100) % 10, class_names=tuple("abcdefghij"))
        save_images(tmp_path / "cifar10" / f"{part}.safetensors", images, "made")
    few, all_but = (cifar10(train_images=count, validation_images=20) for count in (30, 0))
    assert torch.equal(few.test.pixels, all_but.test.pixels)
    assert (len(few.train), len(all_but.train)) == (30, 80)
    assert rows(few.train.pixels) < rows(all_but.train.pixels)


def test_photos_keep_their_owners_and_names(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSSL_DATA", str(tmp_path / "cache"))
    write_folder(tmp_path / "photos", clients=("a", "b"), classes=("x", "y"), each=4)
    dataset = folder(path=str(tmp_path / "photos"), layout="silos", validation_images=4)
    assert torch.equal(dataset.test.labels.bincount(), torch.tensor([2, 2]))
    names = [one.name for one in dataset.originals]
    assert [dataset.owners.names[k] for k in dataset.owners.clients] == [name[0] for name in names]
    assert len(dataset.train) == len(names) == 12
    assert not set(dataset.originals) & set(dataset.test_originals)


def test_what_cannot_be_held_out_is_refused():
    with pytest.raises(FedsslError, match=r"data\.validation_images: 80 of 80 images leave none"):
        build(load("smoke", {**TINY, "data.validation_images": 80}).config)
