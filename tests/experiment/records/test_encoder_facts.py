"""Weight files whose metadata is not what fedssl writes: refused with the file's name, before memory is taken."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import fedssl
from fedssl.core.errors import FedsslError
from fedssl.encoders.classifier import load_classifier
from fedssl.encoders.trained import open_encoder

NAME = "cifar10-fedema-small"
# What is changed; None: is taken away.
WRONG = [
    {"network": "resnet18"},
    {"network": {}},
    {"network": {"name": 5}},
    {"network": {"name": "convnet", "width": "x"}},
    {"network": {"name": "convnet", "width": -1}},
    {"network": {"name": "convnet", "width": 10**7}},
    {"network": {"name": "convnet", "depth": 3}},
    {"network": {"name": "vit-tiny", "width": 10**6}},
    {"channels": "x"},
    {"channels": 10**9},
    {"channels": 0},
    {"channels": True},
    {"image_size": 5},
    {"image_size": []},
    {"image_size": ["a", "b"]},
    {"image_size": [10**9, 10**9]},
    {"image_size": None},
    {"feature_size": "x"},
    {"feature_size": -3},
    {"decoding": {"evil": 1}},
    {"decoding": 5},
    {"decoding": {"image_size": 10**9, "channels": 3}},
    {"decoding": {"image_size": 32, "channels": 3, "fit": "nowhere"}},
]


def changed(path, changes):
    """The file of a model that comes with fedssl, with other metadata."""
    source = fedssl.models()[NAME].file
    with safe_open(source, "pt") as file:
        about = json.loads(file.metadata()["fedssl"]) | changes
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    about = {key: value for key, value in about.items() if value is not None}
    save_file(tensors, path, {"fedssl": json.dumps(about)})
    return path


def test_unchanged_it_is_opened(tmp_path):
    assert open_encoder(changed(tmp_path / "encoder.safetensors", {})).decoding.image_size == 32


@pytest.mark.parametrize("changes", WRONG, ids=str)
def test_what_no_encoder_says_is_refused_with_the_name_of_the_file(tmp_path, changes):
    path = changed(tmp_path / "encoder.safetensors", changes)
    with pytest.raises(FedsslError, match=r"encoder\.safetensors: "):
        open_encoder(path)


@pytest.mark.parametrize(
    "changes", [{"classes": 5}, {"classes": [1, 2]}, {"hidden": "x"}, {"hidden": 10**9}, {"decoding": None}], ids=str
)
def test_the_same_for_classifiers(tmp_path, changes):
    path = changed(tmp_path / "classifier.safetensors", {"classes": ["a", "b"], "hidden": 4} | changes)
    with pytest.raises(FedsslError, match=r"classifier\.safetensors: not an encoder written by fedssl"):
        load_classifier(path)


def test_a_network_larger_than_its_file_is_not_made(tmp_path, monkeypatch):
    path = changed(tmp_path / "encoder.safetensors", {"network": {"name": "resnet50", "width": 512}})
    made = torch.nn.Conv2d.reset_parameters

    def on_meta_only(layer):
        assert layer.weight.device.type == "meta"
        made(layer)

    monkeypatch.setattr(torch.nn.Conv2d, "reset_parameters", on_meta_only)
    with pytest.raises(FedsslError, match=r"makes no network of what it says: the network has [\d,]+ values"):
        open_encoder(path)
