from pathlib import Path

import pytest
import torch

from fedssl.core.errors import FedsslError
from fedssl.data.dataset import Images
from fedssl.data.folders import data_folder
from fedssl.data.standard.cache import load_images, save_images

PIXELS = torch.arange(48, dtype=torch.uint8).view(4, 3, 2, 2)


def test_round_trip(tmp_path):
    path = tmp_path / "new" / "train.safetensors"
    save_images(path, Images(PIXELS, torch.tensor([0, 1, 1, 0]), class_names=("cat", "dög")), "from far")
    images, source = load_images(path)
    assert torch.equal(images.pixels, PIXELS)
    assert images.labels is not None
    assert images.labels.tolist() == [0, 1, 1, 0]
    assert (images.class_names, source) == (("cat", "dög"), "from far")
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_without_labels_and_in_another_memory_order(tmp_path):
    save_images(tmp_path / "x", Images(PIXELS.to(memory_format=torch.channels_last)), "")
    images, _ = load_images(tmp_path / "x")
    assert images.labels is None
    assert torch.equal(images.pixels, PIXELS)


@pytest.mark.parametrize("content", [b"", b"damaged", b"\x02\0\0\0\0\0\0\0{}"])
def test_damaged_file(tmp_path, content):
    path = tmp_path / "train.safetensors"
    path.write_bytes(content)
    with pytest.raises(FedsslError, match=r"train\.safetensors is not readable"):
        load_images(path)


def test_truncated_file(tmp_path):
    path = tmp_path / "train.safetensors"
    save_images(path, Images(PIXELS), "")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FedsslError, match="fetch the dataset again"):
        load_images(path)


def test_data_folder(monkeypatch):
    monkeypatch.setenv("FEDSSL_DATA", "~/somewhere")
    assert data_folder() == Path.home() / "somewhere"
    monkeypatch.delenv("FEDSSL_DATA")
    assert data_folder().parts[-2:] == ("fedssl", "data")
