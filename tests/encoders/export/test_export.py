"""Round trips: what is read back from each format gives the features of the run's own encoder."""

import json
import re
import shutil
import sys
import types
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import fedssl
from fedssl.core.errors import FedsslError
from fedssl.data.own.decoding import Decoding
from fedssl.encoders.evaluate import Request, evaluate
from fedssl.encoders.export import export_encoder
from fedssl.encoders.export.formats import FORMATS
from fedssl.encoders.export.model_card import model_card
from fedssl.encoders.export.programs import _compared
from fedssl.encoders.trained import TrainedEncoder, example_input
from fedssl.experiment.experiment import load
from fedssl.experiment.finished_run import FinishedRun
from fedssl.experiment.records.encoder_file import FeatureExtractor
from fedssl.experiment.records.run_record import RunRecord
from fedssl.networks.backbones import BACKBONES, feature_size
from tests.helpers import plain_resnet
from tests.helpers.small import TINY

SHORT = {**TINY, "rounds": 1, "data.train_images": 40, "data.test_images": 10, "partition.num_clients": 2}
OWN = {name: value for name, value in SHORT.items() if name != "network.width"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A narrow ResNet: its shortcuts pick positions before they convolve."""
    path = tmp_path_factory.mktemp("runs") / "narrow"
    load("smoke", {**SHORT, "network.name": "resnet10", "network.width": 4}).run(path)
    return path


def wide(name, stem_stride=1, channels=3):
    """A network of the width that torchvision and timm have, with statistics that are not those of a new one."""
    torch.manual_seed(0)
    backbone = BACKBONES[name](channels, stem_stride=stem_stride).eval()
    for tensor_name, tensor in backbone.named_buffers():
        if tensor.is_floating_point():
            tensor.uniform_(0.5, 1.5) if "var" in tensor_name else tensor.normal_()
    size = feature_size(backbone, channels, (16, 16))
    network = {"name": name, "stem_stride": stem_stride}
    about = {"network": network, "channels": channels, "image_size": [16, 16], "feature_size": size}
    return TrainedEncoder(FeatureExtractor(backbone, size, (channels, 16, 16)).eval(), about, Decoding(16, channels))


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "own"
    load("smoke", SHORT).run(path)
    return path


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports") / "all"
    made = export_encoder(run, folder, ["safetensors", "onnx", "torch-export", "hub"])
    assert made.owner == "global"
    assert made.files == sorted(path.name for path in folder.iterdir())
    assert made.differences["onnx"] < 1e-4
    assert made.differences["torch-export"] < 1e-5
    return folder


def features(run, count, **allowed):
    images = torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(count))
    with torch.no_grad():
        return images, fedssl.load_encoder(run, **allowed)(images)


@pytest.mark.parametrize("name", ["encoder.safetensors", "model.safetensors", ""])
def test_safetensors_come_back(run, exported, name):
    images, wanted = features(run, 5)
    encoder = fedssl.load_encoder(exported / name)
    torch.testing.assert_close(encoder(images), wanted, rtol=0, atol=1e-5)
    assert encoder.feature_size == wanted.shape[1]


@pytest.mark.parametrize("count", [1, 5])
def test_onnx_gives_the_same_for_any_number_of_images(run, exported, count):
    images, wanted = features(run, count)
    session = onnxruntime.InferenceSession(exported / "encoder.onnx")
    assert [one.shape for one in session.get_inputs()] == [["batch", 3, 16, 16]]
    (found,) = session.run(["features"], {"images": images.numpy()})
    np.testing.assert_allclose(found, wanted.numpy(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("count", [1, 5])
def test_a_torch_export_program_gives_the_same_for_any_number_of_images(run, exported, count):
    images, wanted = features(run, count)
    program = torch.export.load(exported / "encoder.pt2")
    torch.testing.assert_close(program.module()(images), wanted, rtol=0, atol=1e-5)


def test_every_file_says_what_goes_in(exported):
    config = json.loads((exported / "config.json").read_text())
    with safe_open(exported / "model.safetensors", "pt") as file:
        written = [config, json.loads(file.metadata()["fedssl"])]
    props = {one.key: one.value for one in onnx.load(exported / "encoder.onnx").metadata_props}
    written.append(json.loads(props["fedssl"]))
    extra = {"fedssl.json": ""}
    torch.export.load(exported / "encoder.pt2", extra_files=extra)
    written.append(json.loads(extra["fedssl.json"]))
    for about in written:
        assert about["input"]["range"] == [0.0, 1.0]
        assert (about["input"]["layout"], about["input"]["channels"], about["input"]["height"]) == ("NCHW", 3, 16)
        settings = {"width": 4, "stem_stride": 1, "init": "he", "stem": "learned"}
        assert about["network"] == {"name": "resnet10", **settings}
        assert about["encoder"] == "global"
    assert config["formats"]["hub"] == "model.safetensors"


def test_the_model_card_is_filled_from_the_run(run, exported):
    card = (exported / "README.md").read_text()
    summary = FinishedRun.open(run).summary
    assert card.startswith('---\nlicense: "unknown"\nlibrary_name: "fedssl"\n')
    assert "BYOL with FedEMA on synthetic images" in card
    assert "| clients | 2 (classes), 20–20 images each |" in card
    assert f"| kNN, during the run | {100 * summary['gain']['knn']['trained']['accuracy']:.1f} % (BatchNorm" in card
    assert "over the random encoder at its best" in card
    assert "a client sent the weights of its online encoder and of its predictor" in card
    assert "Images, labels, features and optimizer state never left a client" in card
    assert "uint8 / 255, no mean, no standard deviation" in card
    assert summary["weights_sha256"] in card
    assert str(run) not in card


def test_later_evaluations_are_in_the_card_with_their_protocol(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    evaluate(copy, Request(protocols=("knn",), batchnorm="running"))
    export_encoder(copy, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert re.search(r"\| global: knn \(paper\), synthetic, BatchNorm running \| [0-9.]+ % \| 95 % interval", card)


def test_features_that_left_the_clients_are_said_aloud(run, exported):
    about = json.loads((exported / "config.json").read_text())
    record = RunRecord.read(run)
    fedca = replace(record, config=record.config | {"method": {"name": "fedca"}})
    card = model_card(fedca, about, {})
    assert "Beside that it sent normalised projections of some of its images (features)" in card
    assert "Images, labels and optimizer state never left a client" in card


def test_what_differential_privacy_does_not_cover_is_said(run, exported):
    about = json.loads((exported / "config.json").read_text())
    record = RunRecord.read(run)
    promised = {"rounds": 1, "releases": 1, "epsilon": 2.5, "delta": 1e-5, "clip_norm": 1.0, "noise_multiplier": 3.0}
    promised |= {"placement": "local", "noise_seed": "secret"}
    private = replace(record, summary=record.summary | {"privacy": promised})
    assert "Client-level differential privacy after 1 rounds: epsilon 2.5 at delta 1e-05" in model_card(
        private, about, {}
    )
    assert "does not cover" not in model_card(private, about, {})
    kept = about | {"batchnorm": "statistics estimated from 80 training images"}
    assert "does not cover these BatchNorm statistics" in model_card(private, kept, {})
    own = about | {"encoder": "client 1"}
    assert "does not cover a client's own encoder" in model_card(private, own, {})
    assert "does not cover" not in model_card(record, own, {})


@pytest.fixture
def their_libraries(monkeypatch):
    """Stand-ins for torchvision and timm with their names and their stem; neither is installed for tests."""
    for name in ("torchvision", "torchvision.models", "timm", "timm.models"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    for name in ("torchvision.models.resnet", "timm.models.resnet"):
        monkeypatch.setitem(sys.modules, name, plain_resnet)
    monkeypatch.setattr(sys.modules["timm"], "create_model", plain_resnet.create_model, raising=False)


@pytest.mark.parametrize(
    ("library", "name", "stride", "channels"),
    [
        ("torchvision", "resnet18", 1, 3),
        ("timm", "resnet18", 2, 3),
        ("torchvision", "resnet10", 1, 1),
        ("timm", "resnet10", 2, 1),
        ("timm", "resnet50", 1, 3),
    ],
)
@torch.no_grad()
def test_the_lines_of_the_card_load_their_resnet(
    tmp_path, monkeypatch, their_libraries, library, name, stride, channels
):
    encoder, form = wide(name, stride, channels), FORMATS[library]
    form.check(encoder.about)
    form.write(encoder, tmp_path / form.file)
    (code,) = re.findall(r"```python\n(.*?)```", form.usage(encoder.about), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names = {"images": example_input(encoder.about, 3)}
    exec(code, names)
    torch.testing.assert_close(names["features"], encoder.model(names["images"]), rtol=0, atol=1e-5)
    again = fedssl.load_encoder(tmp_path / form.file)
    torch.testing.assert_close(again(names["images"]), encoder.model(names["images"]), rtol=0, atol=0)


def test_their_names(tmp_path):
    FORMATS["timm"].write(wide("resnet18"), tmp_path / "timm.safetensors")
    tensors = load_file(tmp_path / "timm.safetensors")
    assert {
        "conv1.weight": (64, 3, 3, 3),
        "bn1.running_var": (64,),
        "layer1.0.conv2.weight": (64, 64, 3, 3),
        "layer2.0.downsample.0.weight": (128, 64, 1, 1),
        "layer2.0.downsample.1.num_batches_tracked": (),
        "layer4.1.bn2.bias": (512,),
    }.items() <= {name: tuple(tensor.shape) for name, tensor in tensors.items()}.items()


@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_networks_that_they_lack_are_refused_with_the_reason(run, own, tmp_path, library):
    with pytest.raises(FedsslError, match=f"--to {library}: its ResNets begin with 64 channels, this one with 4"):
        export_encoder(run, tmp_path / "out", [library])
    with pytest.raises(FedsslError, match=f"--to {library}: it has no network like convnet"):
        export_encoder(own, tmp_path / "out", ["safetensors", library])
    assert not (tmp_path / "out").exists()


def test_a_users_own_network(tmp_path):
    load("smoke", {**OWN, "network.name": "own_networks:Small"}).run(tmp_path / "run")
    allowed = {"allow_code": ["own_networks"]}
    made = export_encoder(tmp_path / "run", tmp_path / "out", ["safetensors", "torch-export"], **allowed)
    assert made.differences["torch-export"] < 1e-5
    images, wanted = features(tmp_path / "run", 3, **allowed)
    torch.testing.assert_close(fedssl.load_encoder(tmp_path / "out", **allowed)(images), wanted)
    with pytest.raises(FedsslError, match="it has no network like own_networks:Small"):
        export_encoder(tmp_path / "run", tmp_path / "out2", ["timm"], **allowed)


def test_a_network_that_no_exporter_understands_is_named(tmp_path):
    load("smoke", {**OWN, "network.name": "own_networks:Branching"}).run(tmp_path / "run")
    allowed = {"allow_code": ["own_networks"]}
    with pytest.raises(FedsslError, match="own_networks:Branching: the network cannot be exported as a program"):
        export_encoder(tmp_path / "run", tmp_path / "out", ["torch-export"], **allowed)
    assert not (tmp_path / "out").exists()
    assert export_encoder(tmp_path / "run", tmp_path / "out", ["hub"], **allowed).files[-1] == "model.safetensors"


def test_nothing_is_overwritten_and_names_are_checked(run, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(FedsslError, match="exists and is not empty"):
        export_encoder(run, tmp_path / "mine")
    with pytest.raises(FedsslError, match=r"--to: there is no 'onx' \(did you mean 'onnx'\?\)"):
        export_encoder(run, tmp_path / "out", ["onx"])
    with pytest.raises(FedsslError, match="--to: there is no ''"):
        export_encoder(run, tmp_path / "out", [])
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_program_with_other_results_is_not_written(tmp_path):
    model, images = torch.nn.Identity(), torch.rand(2, 3)
    assert _compared(model, images, images, 1e-5, tmp_path / "x") == 0
    with pytest.raises(FedsslError, match="differ from PyTorch's by"):
        _compared(model, images, images + 1e-3, 1e-5, tmp_path / "x")
    with pytest.raises(FedsslError, match="differ"):
        _compared(model, images, images * torch.nan, 1e-5, tmp_path / "x")


def test_without_the_extra_the_remedy_is_said(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(FedsslError, match=r'pip install "fedssl\[onnx\]"'):
        export_encoder(run, tmp_path / "out", ["onnx"])


def test_every_format_has_a_file_of_its_own():
    assert len({one.file for one in FORMATS.values()}) == len(FORMATS)
    about = {"channels": 3, "image_size": [16, 16]}
    assert torch.equal(example_input(about), example_input(about))


def test_the_front_matter_is_what_hubs_read(exported, run):
    from huggingface_hub import ModelCard

    data = ModelCard.load(exported / "README.md").data
    assert (data.license, data.library_name, data.datasets) == ("unknown", "fedssl", None)
    (result,) = data.eval_results
    wanted = FinishedRun.open(run).summary["gain"]["knn"]["trained"]["accuracy"]
    assert (result.metric_type, result.metric_value) == ("accuracy", round(wanted, 4))
    record = RunRecord.read(run)
    about = {**json.loads((exported / "config.json").read_text()), "license": "cc-by-4.0"}
    public = replace(record, config={**record.config, "data": {"name": "cifar10"}})
    data = ModelCard(model_card(public, about, {})).data
    assert (data.license, data.datasets) == ("cc-by-4.0", ["uoft-cs/cifar10"])
