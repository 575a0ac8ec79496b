"""timm: and torchvision: names. The libraries are absent from make test: a stand-in shows who may name what."""

import io
import json
import sys
import tomllib
import types
from types import SimpleNamespace

import numpy as np
import pytest
import tomli_w
import torch
from huggingface_hub import constants
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from fedssl.core.errors import FedsslError
from fedssl.core.registry import Typed
from fedssl.data.own.decoding import decode_file
from fedssl.deployment.site_run import checked_settings
from fedssl.encoders.api import embed
from fedssl.encoders.evaluate.data import find_data
from fedssl.encoders.evaluate.request import Request
from fedssl.encoders.export import export_encoder
from fedssl.encoders.trained import load_encoder, open_encoder
from fedssl.experiment.build.automatic import like_start
from fedssl.experiment.build.networks import _crops, build_method
from fedssl.experiment.build.parts import build
from fedssl.experiment.config.layers import load_config, load_raw, typed_config
from fedssl.experiment.experiment import load
from fedssl.experiment.finished_run import FinishedRun
from fedssl.networks.backbones import BACKBONES, feature_size, find_backbone
from fedssl.networks.libraries import input_settings, origin_of
from fedssl.networks.weight_files import read_weight_file
from tests.helpers.pictures import noise, write_folder
from tests.helpers.small import TINY

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.5)
OWN = {name: value for name, value in TINY.items() if name != "network.width"}


class Tiny(nn.Module):
    """What the stand-in's create_model makes: one vector for each image, sized by its arguments."""

    def __init__(self, in_chans, patch_size=4, img_size=None, dynamic_img_size=False):
        super().__init__()
        self.conv1 = nn.Conv2d(in_chans, 5, patch_size, patch_size)
        self.only = None if dynamic_img_size else img_size

    def forward(self, images):
        torch._assert(not self.only or self.only == [*images.shape[2:]], f"made for {self.only}")
        return self.conv1(images).mean(dim=(2, 3))


@pytest.fixture
def timm(monkeypatch):
    """A stand-in with timm's interface, and a list of what create_model was called with."""
    calls = []

    def create_model(name, pretrained=False, num_classes=1000, in_chans=3, **others):
        calls.append({"name": name, "pretrained": pretrained, "num_classes": num_classes, **others})
        if "img_size" in others and others["img_size"][0] < 8:
            raise ValueError("too small\nfor this network")
        return module.made(in_chans, **others)

    about = {
        "mean": MEAN,
        "std": STD,
        "input_size": (3, 224, 224),
        "interpolation": "bicubic",
        "fixed_input_size": True,
    }
    module = types.ModuleType("timm")
    module.__file__ = "timm.py"
    module.calls, module.create_model, module.made = calls, create_model, Tiny
    module.about = about
    module.list_models = lambda pretrained=False: ["resnet18", "resnet34", "vit_tiny_patch16_224"]
    module.get_pretrained_cfg = lambda name: SimpleNamespace(to_dict=lambda: about)
    monkeypatch.setitem(sys.modules, "timm", module)
    return module


def test_a_network_by_its_name_without_download_and_without_head(timm):
    network = find_backbone("timm:resnet18", image_size=(16, 16))(3, patch_size=2)
    size = {"img_size": [16, 16], "dynamic_img_size": True}
    assert timm.calls == [{"name": "resnet18", "pretrained": False, "num_classes": 0, "patch_size": 2, **size}]
    assert feature_size(network, 3, (16, 16)) == 5
    origin = origin_of(network)
    assert (origin.library, origin.model) == ("timm", "resnet18")
    assert origin.arguments == {"img_size": [16, 16], "patch_size": 2}, "as timm makes it for one size"
    inside = {"mean": list(MEAN), "std": list(STD)}
    assert origin.published_input == {"size": [224, 224], "interpolation": "bicubic", **inside}


def test_images_from_0_to_1_are_normalised_by_the_network_itself(timm):
    network = find_backbone("timm:resnet18", image_size=(16, 16))(3)
    images = torch.rand(2, 3, 16, 16)
    by_hand = torch.stack([(images[:, c] - MEAN[c]) / STD[c] for c in range(3)], dim=1)
    torch.testing.assert_close(network(images), network.forward(by_hand))
    assert network.state_dict().keys() == {"conv1.weight", "conv1.bias"}, "mean and deviation are no weights"
    assert input_settings(network) == {"mean": list(MEAN), "std": list(STD)}


@pytest.mark.parametrize(("channels", "wanted"), [(1, [0.5]), (3, [0.4, 0.5, 0.6]), (5, [0.5] * 5)])
def test_other_channels_take_the_average_of_the_colours(timm, channels, wanted):
    network = find_backbone("timm:resnet18", image_size=(16, 16))(channels)
    assert network.normalise.mean.flatten().tolist() == pytest.approx(wanted)
    again = find_backbone("timm:resnet18", image_size=(16, 16))(channels, **input_settings(network))
    assert torch.equal(again.normalise.mean, network.normalise.mean)


def test_names_that_timm_does_not_have_are_answered_with_the_nearest(timm):
    with pytest.raises(
        FedsslError,
        match=r"^network\.name: timm has no classification network 'resnet81' "
        r"\(did you mean 'resnet18' or 'resnet34'\?\): `timm\.list_models",
    ):
        find_backbone("timm:resnet81", image_size=(16, 16))(3)


def test_a_size_or_setting_that_the_network_refuses_is_one_line(timm):
    with pytest.raises(FedsslError, match=r"^network: timm:resnet18 cannot be built for 4x4 images .*: too small$"):
        find_backbone("timm:resnet18", image_size=(4, 4))(3)
    with pytest.raises(FedsslError, match=r"network\.mean: 2 numbers for images of 3 channels: give 3"):
        find_backbone("timm:resnet18", image_size=(16, 16))(3, mean=[0.1, 0.2])
    with pytest.raises(FedsslError, match=r"network\.widht: unknown key"):
        load_config("smoke", {**OWN, "network.name": "timm:resnet18", "network.widht": 3})


class OneSize(Tiny):
    """Of a class of timm that takes images of its own size only."""

    def __init__(self, in_chans, img_size=None):
        super().__init__(in_chans, img_size=img_size)


VIEWS = {**OWN, "network.name": "timm:resnet18"}
CROPS = VIEWS | {"method.name": "dino", "method.local_views": 1}


@pytest.mark.parametrize("settings", [VIEWS | {"augmentation.output_size": 8}, CROPS])
def test_a_transformer_takes_views_of_another_size(timm, settings):
    assert build(load_config("smoke", settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            VIEWS | {"augmentation.output_size": 24},
            "fails on views (augmentation.output_size) of 3x24x24: made for [28, 28]; it takes 28x28: set "
            "augmentation.output_size = 28",
        ),
        (
            CROPS,
            "fails on small crops (method.local_part, method.local_views) of 3x14x14: made for [28, 28]; it takes "
            "28x28: set method.local_part = 1, or method.local_views = 0 for none",
        ),
    ],
)
def test_a_network_of_one_size_is_refused_with_the_setting_of_its_views(timm, settings, message):
    timm.made = OneSize
    with pytest.raises(FedsslError) as caught:
        build(load_config("smoke", settings | {"data.image_size": 28}))
    assert str(caught.value) == f"network: the backbone {message}"


def test_small_crops_that_need_larger_views():
    assert _crops(0.5, 16).remedy(28) == "set augmentation.output_size = 56, or method.local_views = 0 for none"


# --- who may name code: a known library's model is data, anything else is code as ever -------------------------------


def test_a_file_may_name_a_model_of_the_library(timm):
    assert BACKBONES.check("timm:resnet18") == ""
    assert find_backbone("timm:resnet18", (), "a file", (16, 16))(3)


@pytest.mark.parametrize(
    "name",
    ["timm:create_model", "timm.models:create_model", "timm.models.resnet:resnet18", "torchvision.models:resnet18"],
)
def test_a_file_may_name_no_code_of_the_library(timm, name):
    with pytest.raises(FedsslError, match=r"it names code of package '(timm|torchvision)'"):
        BACKBONES.find(name, (), "a file")
    assert not timm.calls


@pytest.mark.parametrize("name", ["hf-hub:evil/model", "local-dir:/tmp/evil", "../evil", "os:system", "", "resnet18 "])
def test_names_that_the_library_would_open_as_files_or_addresses_reach_it_never(timm, name):
    with pytest.raises(FedsslError, match=r"has no classification network|there is no 'timm:'"):
        find_backbone(f"timm:{name}", image_size=(16, 16))(3)
    assert not timm.calls


@pytest.mark.parametrize("setting", ["checkpoint_path", "pretrained_cfg", "cache_dir", "model_name"])
def test_only_the_settings_that_fedssl_knows_reach_the_library(timm, setting):
    with pytest.raises(FedsslError, match=rf"network\.{setting}: unknown key"):
        load_config("smoke", {**OWN, "network.name": "timm:resnet18", f"network.{setting}": "evil.pth"})


def test_create_model_by_import_path_works_as_ever_where_a_person_typed_it(timm):
    settings = {"network.name": "timm:create_model", "network.model_name": "anything", "network.pretrained": True}
    timm.create_model = lambda model_name, pretrained: Tiny(3) if pretrained else None
    timm.create_model.__module__ = "timm"
    config = typed_config("smoke", OWN | settings)
    assert config.allow_code == ("timm:create_model",)
    assert config.network.model_extra["pretrained"] is True
    assert isinstance(build_method(config, 3, (16, 16)).online_encoder.backbone, Tiny)
    typed = Typed()
    BACKBONES.find("timm:create_model", typed)
    assert typed == ["timm:create_model"]


# --- weights to start from --------------------------------------------------------------------------------------------


def test_pretrained_is_short_for_init_encoder(timm, tmp_path):
    torch.manual_seed(1)
    tensors = {"conv1.weight": torch.rand(5, 3, 4, 4), "conv1.bias": torch.rand(5), "head.weight": torch.rand(10, 5)}
    save_file(tensors, tmp_path / "theirs.safetensors")
    settings = {**OWN, "network.name": "timm:resnet18", "network.pretrained": str(tmp_path / "theirs.safetensors")}
    config = load_config("smoke", settings)
    assert config.init.encoder == str(tmp_path / "theirs.safetensors")
    assert "pretrained" not in config.network.model_dump()
    parts = build(config)
    assert torch.equal(parts.client.method.online_encoder.backbone.conv1.weight, tensors["conv1.weight"])
    said = (
        "weights that timm publishes for resnet18 saw images of 224 pixels, bicubic; these are 16 x 16, not resampled"
    )
    assert said in parts.remarks


# --- the images of those weights: their size and resampling come with them -------------------------------------------


@pytest.fixture
def theirs(timm, tmp_path):
    """Weights that saw bicubic images of 48 pixels, and a folder to train them further on."""
    timm.about |= {"input_size": (3, 48, 48), "fixed_input_size": False}
    torch.manual_seed(2)
    tensors = {"conv1.weight": torch.rand(5, 3, 4, 4), "conv1.bias": torch.rand(5)}
    save_file(tensors, tmp_path / "theirs.safetensors")
    write_folder(tmp_path / "photos", classes=("cat", "dog"), each=6, size=100)
    heads = {key: value for key, value in OWN.items() if key.startswith(("network", "local_training"))}
    return heads | {
        "network.name": "timm:resnet18",
        "network.pretrained": str(tmp_path / "theirs.safetensors"),
        "data.path": str(tmp_path / "photos"),
        "data.test_fraction": 0.3,
        "partition.num_clients": 2,
        "evaluation.linear_probe": False,
        "rounds": 1,
        "threads": 1,
    }


def test_size_and_resampling_come_with_the_weights_and_travel_with_every_export(theirs, tmp_path):
    load("continue", theirs).run(tmp_path / "run")
    written = load_config(str(tmp_path / "run" / "config.toml"))
    assert (written.data.settings["image_size"], written.data.settings["resampling"]) == (48, "bicubic")
    export_encoder(tmp_path / "run", tmp_path / "out", ["safetensors", "timm", "hub", "torch-export"])
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    published = config["pretrained_cfg"]
    assert (published["input_size"], published["interpolation"]) == ([3, 48, 48], "bicubic")
    assert (published["mean"], published["std"]) == (list(MEAN), list(STD))
    assert "by the middle square, bicubic, antialiased" in (tmp_path / "out" / "README.md").read_text()
    for file in ("encoder.safetensors", "timm.safetensors", "model.safetensors"):
        about = read_weight_file(tmp_path / "out" / file).about
        assert about["decoding"] | {"image_size": 48, "resampling": "bicubic"} == about["decoding"]
        assert about["input"]["resampling"] == "bicubic, antialiased"

    image = Image.fromarray(noise(100, seed=9))
    image.save(tmp_path / "one.png")
    resized = torch.from_numpy(np.array(image.resize((48, 48), Image.Resampling.BICUBIC))).permute(2, 0, 1)
    for place in (tmp_path / "run", tmp_path / "out"):
        wanted = load_encoder(place)(resized[None])
        torch.testing.assert_close(embed(place, tmp_path / "one.png").features, wanted)
        decoded = decode_file(io.BytesIO((tmp_path / "one.png").read_bytes()), open_encoder(place).decoding)
        assert np.array_equal(decoded.pixels, resized), "PIL's own bicubic, bit for bit"


def test_evaluation_on_other_files_resizes_them_as_the_run_did(theirs, tmp_path):
    load("continue", theirs).run(tmp_path / "run")
    settings = {"path": str(tmp_path / "photos"), "test_fraction": 0.3}
    run = FinishedRun.open(tmp_path / "run")
    chosen, data = find_data(run, Request(data="folder", data_settings=settings))
    assert (chosen.settings["image_size"], chosen.settings["resampling"]) == (48, "bicubic")
    assert torch.equal(data.test.pixels, run.dataset.test.pixels)


def test_an_encoder_of_fedssl_brings_its_own(theirs, tmp_path):
    load("continue", theirs).run(tmp_path / "run")
    again = {key: value for key, value in theirs.items() if key != "network.pretrained"}
    config, said = like_start(load_config("continue", again | {"init.encoder": str(tmp_path / "run")}))
    assert (config.data.settings["image_size"], config.data.settings["resampling"]) == (48, "bicubic")
    assert said == (
        "as the weights to start from: data.image_size = 48, data.resampling = bicubic, network.mean = [0.4, 0.5, 0.6],"
        " network.std = [0.2, 0.25, 0.5] (set them to choose otherwise)"
    )
    assert config.automatic == ()


OWN_INPUT = {"network.mean": [0.1, 0.2, 0.3], "network.std": [1.0, 0.5, 0.25]}


def test_what_an_encoder_normalises_by_comes_with_it_and_not_the_librarys(theirs, tmp_path):
    """Two networks in one: by the settings of the first run, by the library's default without them."""
    load("continue", theirs | OWN_INPUT).run(tmp_path / "run")
    again = {key: value for key, value in theirs.items() if key != "network.pretrained"}
    again = load("continue", again | {"init.encoder": str(tmp_path / "run")})
    summary = again.run(tmp_path / "more").summary
    written = tomllib.loads((tmp_path / "more" / "config.toml").read_text())["network"]
    assert {f"network.{name}": written[name] for name in ("mean", "std")} == OWN_INPUT
    assert load_encoder(tmp_path / "more").backbone.normalise.mean.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert again.run(tmp_path / "more").summary == summary, "the same command finds its run again"


HUB = {"architecture": "resnet18", "pretrained_cfg": {"input_size": [3, 24, 24], "interpolation": "bilinear"}}
HUB["pretrained_cfg"] |= {"mean": [0.1, 0.2, 0.3], "std": [1, 0.5, 0.25], "crop_pct": 0.9}


@pytest.mark.parametrize("config", [HUB, {"architecture": "resnet18", **HUB["pretrained_cfg"]}])
def test_the_config_that_the_hub_has_beside_weights_says_it_better_than_the_library(theirs, tmp_path, config):
    """Of a name with several weights, the library knows the default ones; old files of the hub have no table."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    begun, said = like_start(load_config("continue", theirs))
    assert begun.data.settings["image_size"] == 24
    assert begun.data.settings["resampling"] == "bilinear"
    assert {f"network.{name}": begun.network.model_extra[name] for name in ("mean", "std")} == OWN_INPUT
    assert "network.std = [1.0, 0.5, 0.25]" in said
    kept, _ = like_start(load_config("continue", theirs | {"network.mean": [0.7]}))
    assert kept.network.model_extra["mean"] == [0.7]
    assert kept.network.model_extra["std"] == [1.0, 0.5, 0.25]


@pytest.mark.parametrize("content", ["{", "[]", '{"mean": "3"}', '{"architecture": "resnet18"}'])
def test_another_config_beside_weights_is_passed_over(theirs, tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    config, _ = like_start(load_config("continue", theirs))
    assert (config.data.settings["image_size"], config.network.model_extra["mean"]) == (48, list(MEAN))


@pytest.mark.parametrize(
    ("about", "problem"),
    [
        ({"mean": "0.5"}, "mean: Input should be a valid list"),
        ({"std": [0.2, 0.0, 0.2]}, "std.1: Input should be greater than 0"),
        ({"input_size": [3, 0, 224]}, "input_size.1: Input should be greater than or equal to 1"),
        ([], "Input should be a valid dictionary or instance of InputFacts"),
    ],
)
def test_a_config_beside_weights_that_makes_no_sense_is_one_line(theirs, tmp_path, about, problem):
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "resnet18", "pretrained_cfg": about}))
    with pytest.raises(FedsslError) as caught:
        like_start(load_config("continue", theirs))
    said = "not understood, what it says of the images of these weights"
    assert str(caught.value).startswith(f"{tmp_path / 'config.json'}: {said} (")
    assert problem in str(caught.value)


def test_weights_that_are_named_bring_what_their_own_name_says(timm):
    """The library has other images for each of its weights of one network."""
    named = {"resnet18.a": {"mean": (0.1, 0.2, 0.3), "std": (1.0, 0.5, 0.25)}}
    timm.list_models = lambda pretrained=False: ["resnet18.a"] if pretrained else ["resnet18"]
    timm.get_pretrained_cfg = lambda name: SimpleNamespace(to_dict=lambda: timm.about | named.get(name, {}))
    settings = {**OWN, "network.name": "timm:resnet18", "init.encoder": "timm:resnet18.a"}
    config, _ = like_start(load_config("smoke", settings))
    assert {f"network.{name}": config.network.model_extra[name] for name in ("mean", "std")} == OWN_INPUT


def test_what_is_set_stays_and_nothing_else_changes_for_runs_from_random_weights(theirs):
    given = {"data.image_size": 32, "data.resampling": "bilinear", **OWN_INPUT}
    config, said = like_start(load_config("continue", theirs | given))
    assert (config.data.settings["image_size"], config.data.settings["resampling"], said) == (32, "bilinear", "")
    random = {key: value for key, value in theirs.items() if key != "network.pretrained"}
    config, said = like_start(load_config("folder", random))
    assert (config.data.settings["image_size"], config.data.settings["resampling"], said) == (64, "bilinear", "")
    config, said = like_start(load_config("folder", random | {"data.image_size": "auto"}))
    assert (config.data.settings["image_size"], said.partition(":")[0]) == (64, "no weights say otherwise")


def test_the_config_of_a_run_from_before_there_was_a_choice_keeps_its_bits(theirs, tmp_path):
    load("continue", theirs).run(tmp_path / "run")
    raw = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    del raw["data"]["resampling"]
    (tmp_path / "old.toml").write_text(tomli_w.dumps(raw))
    config = load_config(str(tmp_path / "old.toml"))
    assert (config.automatic, config.data.settings["resampling"]) == ((), "bilinear")


def test_only_data_with_that_setting_can_leave_it_to_the_weights():
    with pytest.raises(FedsslError, match=r"data\.image_size: unknown key"):
        load_config("smoke", {"data.name": "cifar10", "data.image_size": "auto"})


def test_true_asks_the_library_and_says_when_it_cannot(timm, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # nobody is asked
    config = load_config("smoke", {**OWN, "network.name": "timm:resnet18", "network.pretrained": True})
    assert config.init.encoder == "timm:resnet18"
    build_method(config, 3, (16, 16))
    assert [call["pretrained"] for call in timm.calls] == [False, True]

    def offline(*args, **kwargs):
        raise OSError("no route to host")

    timm.create_model = offline
    with pytest.raises(FedsslError, match=r"^init\.encoder: timm could not fetch weights of resnet34 \(no route"):
        build_method(load_config("smoke", {**OWN, "init.encoder": "timm:resnet34"}), 3, (16, 16))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"network.pretrained": True},
            r"network\.pretrained: nobody publishes weights of convnet: give a \.safetensors",
        ),
        ({"network.pretrained": 3}, r"network\.pretrained: 3 is neither a file nor true or false"),
        (
            {"network.pretrained": "a", "init.encoder": "b"},
            r"network\.pretrained: init\.encoder says .* give one of the",
        ),
    ],
)
def test_pretrained_that_makes_no_sense(settings, message):
    with pytest.raises(FedsslError, match=message):
        load_config("smoke", settings)


def test_a_server_can_make_a_site_open_or_fetch_no_weights(timm):
    """What a message says is resolved as it is: the short form is of presets, files and --set alone."""
    raw = load_raw("sites", {"flower.clients": ["a"]})
    hostile = raw | {"network": {"name": "timm:resnet18", "pretrained": "/etc/passwd"}}
    with pytest.raises(FedsslError, match=r"network\.pretrained: unknown key"):
        checked_settings(hostile)
    given = checked_settings(raw | {"network": {"name": "timm:resnet18"}, "init": {"encoder": "timm:resnet18"}})
    assert given.init.encoder == ""


def test_weights_for_images_of_other_channels_are_refused_with_the_remedy(timm, tmp_path):
    save_file({"conv1.weight": torch.rand(5, 3, 4, 4), "conv1.bias": torch.rand(5)}, tmp_path / "x.safetensors")
    config = load_config("smoke", {**OWN, "network.name": "timm:x", "init.encoder": str(tmp_path / "x.safetensors")})
    timm.list_models = lambda pretrained=False: ["x"]
    with pytest.raises(FedsslError, match=r"conv1\.weight 5x3x4x4 instead of 5x1x4x4: .* set data\.channels = 3$"):
        build_method(config, 1, (16, 16))


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_an_absent_library_is_one_line_with_the_command(monkeypatch, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(FedsslError) as caught:
        find_backbone(f"{library}:resnet18", image_size=(16, 16))(3)
    wanted = f'network.name = {library}:resnet18: {library} is not installed: pip install "fedssl[{library}]"'
    assert str(caught.value) == wanted


def test_create_model_without_timm_is_the_same_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(FedsslError) as caught:
        BACKBONES.typed("timm:create_model")
    wanted = 'network.name = timm:create_model: timm is not installed: pip install "fedssl[timm]"'
    assert str(caught.value) == wanted
