"""[init]: a run whose backbone starts from a file."""

import pickle
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import fedssl
from fedssl.core.errors import FedsslError
from fedssl.core.weights import Weights
from fedssl.experiment.build.parts import build
from fedssl.experiment.config.layers import load_config
from fedssl.experiment.experiment import load
from fedssl.experiment.finished_run import FinishedRun
from fedssl.experiment.records.run_record import RunRecord
from fedssl.networks.backbones import resnet18
from fedssl.networks.weight_files import standard_names
from fedssl.reports.prose import warnings
from tests.helpers.small import TINY

RESNET = {**TINY, "network.name": "resnet18", "network.width": 4}


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "first"
    load("smoke", TINY).run(path)
    return path


def backbone_of(run):
    tensors = load_file(run / "encoder.safetensors")
    return {name.removeprefix("backbone."): t for name, t in tensors.items() if name.startswith("backbone.")}


def test_online_and_target_start_with_the_file_and_heads_at_random(first):
    method = build(load_config("smoke", {**TINY, "init.encoder": str(first)})).client.method
    for encoder in (method.online_encoder, method.target_encoder):
        torch.testing.assert_close(encoder.backbone.state_dict(), backbone_of(first), rtol=0, atol=0)
    cold = build(load_config("smoke", TINY)).client.method
    assert Weights.of(cold.online_encoder.projector).digest() == Weights.of(method.online_encoder.projector).digest()


def test_a_run_records_the_file_and_refuses_another_ever_after(first, tmp_path):
    start, out = tmp_path / "start.safetensors", tmp_path / "run"
    shutil.copy(first / "encoder.safetensors", start)
    settings = {**TINY, "init.encoder": str(start)}
    report = load("smoke", settings).run(out)
    assert report.summary["init"]["encoder"] == str(start)
    assert len(report.summary["init"]["sha256"]) == 64
    run = FinishedRun.open(out)
    assert run.config.init.sha256 == report.summary["init"]["sha256"]
    assert any("did not start at random" in text for text in warnings(RunRecord.read(out)))
    save_file({name: tensor + 1 for name, tensor in load_file(start).items()}, start)
    with pytest.raises(FedsslError, match=r"begun with other settings: init\.sha256"):
        load("smoke", settings).run(out)
    with pytest.raises(FedsslError, match=r"init\.encoder: .* not the file that the run was begun with"):
        load(str(out / "config.toml")).run(tmp_path / "again")
    start.unlink()
    assert len(Weights.of(run.global_encoder()).tensors()) > 10, "what was trained can be read without the file"


def test_a_relative_path_is_made_absolute(first, monkeypatch):
    monkeypatch.chdir(first.parent)
    assert load_config("smoke", {"init.encoder": "first"}).init.encoder == str(first)


@pytest.mark.parametrize("with_classifier", [False, True])
def test_weights_by_the_names_of_torchvision(tmp_path, with_classifier):
    source = resnet18(3, width=4)
    tensors = standard_names(Weights.of(source).tensors())
    assert "layer2.0.downsample.1.running_mean" in tensors
    if with_classifier:
        tensors |= {"fc.weight": torch.rand(10, 32), "fc.bias": torch.rand(10)}
    save_file(tensors, tmp_path / "theirs.safetensors")
    settings = {**RESNET, "init.encoder": str(tmp_path / "theirs.safetensors")}
    backbone = build(load_config("smoke", settings)).client.method.online_encoder.backbone
    torch.testing.assert_close(backbone.state_dict(), source.state_dict(), rtol=0, atol=0)


def test_the_stem_of_imagenet_is_recognised_and_can_be_skipped(tmp_path):
    source = resnet18(3, width=4)
    stem = torch.rand(4, 3, 7, 7)
    path = tmp_path / "imagenet.safetensors"
    save_file({**Weights.of(source).tensors(), "conv1.weight": stem}, path)
    with pytest.raises(
        FedsslError, match=r'4x3x7x7 instead of 4x3x3x3. Only the stem differs.*init.skip = \["conv1"\]'
    ):
        build(load_config("smoke", {**RESNET, "init.encoder": str(path)}))
    settings = {**RESNET, "init.encoder": str(path), "init.skip": ["conv1"]}
    backbone = build(load_config("smoke", settings)).client.method.online_encoder.backbone
    cold = build(load_config("smoke", RESNET)).client.method.online_encoder.backbone
    assert torch.equal(backbone.conv1.weight, cold.conv1.weight)
    assert torch.equal(backbone.layer4[1].conv2.weight, source.layer4[1].conv2.weight)
    with pytest.raises(FedsslError, match=r"init\.skip: the network has no module 'entry', only stem, conv1, bn1"):
        build(load_config("smoke", {**settings, "init.skip": ["entry"]}))


def test_another_architecture_names_the_first_differing_keys(first, tmp_path):
    with pytest.raises(
        FedsslError,
        match=r"belongs to another network: missing: layer1\.0\.conv1\.weight.* more; not of.*: give network\.name and "
        r"its settings as they were when these weights were trained, or leave modules out with init\.skip$",
    ):
        build(load_config("smoke", {**RESNET, "init.encoder": str(first)}))
    with pytest.raises(
        FedsslError,
        match=r"of another shape: conv1\.weight 4x3x3x3 instead of 8x3x3x3.*: set network\.width = 4, the width of "
        r"these weights, instead of 8$",
    ):
        build(load_config("smoke", {**TINY, "network.width": 8, "init.encoder": str(first)}))


class Touches:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (type(self.path).touch, (self.path,))


@pytest.mark.parametrize("name", ["weights.pt", "weights.pth", "weights.safetensors"])
@pytest.mark.parametrize("kind", ["pickle", "torch zip"])
def test_a_pickle_is_refused_unopened_with_the_remedy(tmp_path, name, kind):
    path, touched = tmp_path / name, tmp_path / "touched"
    if kind == "pickle":
        path.write_bytes(pickle.dumps(Touches(touched)))
    else:
        torch.save({"weights": Touches(touched)}, path)
    with pytest.raises(FedsslError, match=r"a pickle.*save_file\(torch\.load\('weights.*weights_only=True") as caught:
        build(load_config("smoke", {**TINY, "init.encoder": str(path)}))
    assert not touched.exists()
    target = "weights-converted.safetensors" if name == "weights.safetensors" else "weights.safetensors"
    assert f"weights_only=True), '{target}')" in str(caught.value), "never over the file itself"
    assert "torch.load(…)['state_dict'], ['model'] or ['teacher']" in str(caught.value)


@pytest.mark.parametrize(("name", "reason"), [("x.onnx", "an ONNX graph"), ("x.pt2", "a torch.export program")])
def test_programs_are_refused_with_the_reason(tmp_path, name, reason):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(FedsslError, match=f"{reason} is a program.*--to safetensors"):
        build(load_config("smoke", {**TINY, "init.encoder": str(tmp_path / name)}))


def test_what_is_not_there_or_damaged_is_said(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"rubbish")
    for place, text in (
        ("none", "there is no encoder"),
        ("", "none of encoder.safetensors"),
        ("x.safetensors", "damaged"),
    ):
        with pytest.raises(FedsslError, match=f"init.encoder: .*{text}"):
            load("smoke", {**TINY, "init.encoder": str(tmp_path / place)}).run(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_workers_start_with_the_same_weights(first, tmp_path):
    settings = {**TINY, "rounds": 1, "init.encoder": str(first)}
    here = load("smoke", {**settings, "engine": "in-process"}).run(tmp_path / "here").summary
    workers = {**settings, "engine": "processes", "workers": 1}
    there = load("smoke", workers).run(tmp_path / "there").summary
    assert here["weights_sha256"] == there["weights_sha256"]
    assert here["init"] == there["init"]
    assert fedssl.load_encoder(tmp_path / "here").feature_size == 32
