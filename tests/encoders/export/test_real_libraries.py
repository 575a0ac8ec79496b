"""With the real timm, torchvision and huggingface_hub (`make check-timm`): from a name through a run and back again."""

import io
import re

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import fedssl
from fedssl.core.errors import FedsslError
from fedssl.core.weights import Weights
from fedssl.data.own.decoding import decode_file
from fedssl.encoders.export import export_encoder
from fedssl.encoders.models import models
from fedssl.encoders.trained import open_encoder
from fedssl.experiment.build.automatic import like_start
from fedssl.experiment.build.networks import build_method
from fedssl.experiment.config.layers import load_config
from fedssl.experiment.experiment import load
from fedssl.networks.backbones import feature_size, find_backbone
from fedssl.networks.blocks import blocks_of
from tests.helpers.pictures import write_folder
from tests.helpers.small import TINY

pytestmark = pytest.mark.timm
SHORT = {name: value for name, value in TINY.items() if name != "network.width"}
SHORT |= {"rounds": 1, "data.train_images": 16, "data.test_images": 8, "partition.num_clients": 2, "evaluation.k": 4}
SHORT |= {"partition.name": "iid", "engine": "in-process", "update_rule.norm": "l2"}
WIDTHS = {"convnext-atto": 40, "vit-tiny": 192, "resnet18": 64}  # of fedssl's own; the preset's is for seconds
NETWORKS = {  # with the side of its images
    "timm:resnet18": 32,
    "timm:resnet50": 32,
    "timm:vit_tiny_patch16_224": 32,
    "timm:vit_small_patch14_dinov2": 28,
    "timm:convnext_atto": 32,
    "timm:mobilenetv3_small_100": 32,
    "torchvision:resnet18": 32,
    "torchvision:resnet50": 32,
    "torchvision:vit_b_16": 32,
    "torchvision:convnext_tiny": 32,
    "torchvision:mobilenet_v3_small": 32,
    "torchvision:squeezenet1_1": 32,
    "convnext-atto": 32,
    "vit-tiny": 32,
    "resnet18": 32,
}


@pytest.fixture(scope="module", params=NETWORKS)
def exported(request, tmp_path_factory):
    """A run of one round with this network, exported to all that it can be written as."""
    name, place = request.param, tmp_path_factory.mktemp("library")
    width = {"network.width": WIDTHS[name]} if name in WIDTHS else {}
    load("smoke", {**SHORT, **width, "network.name": name, "data.image_size": NETWORKS[name]}).run(place / "run")
    libraries = [library for library in ("timm", "torchvision") if name.startswith(library) or name == "resnet18"]
    formats = ["safetensors", "torch-export", "hub", *(libraries or ["timm"])]
    export_encoder(place / "run", place / "out", formats, license="apache-2.0")
    images = torch.rand(3, 3, NETWORKS[name], NETWORKS[name], generator=torch.Generator().manual_seed(0))
    encoder = fedssl.load_encoder(place / "run")
    with torch.no_grad():
        return name, place / "out", images, encoder(images)


def test_exports_load_strictly_into_the_library_and_give_the_same_features(exported, monkeypatch):
    """By the very lines that the model card shows."""
    _, folder, images, wanted = exported
    monkeypatch.chdir(folder)
    blocks = re.findall(r"### (\S+)\n.*?```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    usages = {name: code for name, code in blocks if name in ("timm", "torchvision")}
    assert usages
    for code in usages.values():
        names = {"images": images}
        with torch.no_grad():
            exec(code, names)
        torch.testing.assert_close(names["features"], wanted, rtol=1e-5, atol=1e-5)


def test_fedssl_opens_its_own_files_again(exported):
    _, folder, images, wanted = exported
    with torch.no_grad():
        assert torch.equal(fedssl.load_encoder(folder)(images), wanted)
        assert torch.equal(fedssl.load_encoder(folder / "model.safetensors")(images), wanted)


@pytest.mark.parametrize("exported", [name for name in NETWORKS if name.startswith("timm:")], indirect=True)
def test_timm_opens_the_hub_folder_with_its_own_transforms(exported):
    """Others have parts that timm does not make by its arguments alone."""
    import timm

    _, folder, images, wanted = exported
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    about = timm.data.resolve_model_data_config(model)
    assert about["input_size"] == tuple(images.shape[1:])
    mean, std = (torch.tensor(about[key]).view(-1, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        torch.testing.assert_close(model((images - mean) / std), wanted, rtol=1e-5, atol=1e-5)


def test_the_card_passes_the_checks_of_the_hub(exported):
    from huggingface_hub import ModelCard

    name, folder, _, _ = exported
    card = ModelCard.load(folder / "README.md")
    library = "timm" if name.startswith("timm:") else "fedssl"
    assert (card.data.license, card.data.library_name) == ("apache-2.0", library)
    (result,) = card.data.eval_results
    assert (result.task_type, result.metric_type) == ("image-classification", "accuracy")
    assert 0 <= result.metric_value <= 1


def test_the_card_of_an_encoder_that_comes_with_fedssl_names_its_dataset():
    from huggingface_hub import ModelCard

    (file,) = [one.file for name, one in models().items() if name == "cifar10-fedema-small"]
    assert ModelCard.load(file.parent / "README.md").data.datasets == ["uoft-cs/cifar10"]


@pytest.mark.parametrize("name", ["timm:vit_tiny_patch16_224", "timm:vit_small_patch14_reg4_dinov2"])
@pytest.mark.parametrize("method", ["byol", "dino"])
def test_a_transformer_learns_from_views_of_other_sizes(tmp_path, name, method):
    """Smaller views, and DINO's crops of half their side; at its own size its features are timm's, bit for bit."""
    patch = 14 if "patch14" in name else 16
    settings = {"network.name": name, "data.image_size": 4 * patch, "augmentation.output_size": 2 * patch}
    local = {"method.prototypes": 12, "method.local_views": 1} if method == "dino" else {}
    load("smoke", SHORT | settings | {"method.name": method} | local).run(tmp_path / "run")
    images = torch.rand(2, 3, 4 * patch, 4 * patch)
    ours = fedssl.load_encoder(tmp_path / "run").backbone
    theirs = timm_model(name, 4 * patch)
    theirs.load_state_dict(ours.state_dict(), strict=True)
    with torch.no_grad():
        assert torch.equal(ours(images), theirs.eval()(ours.normalise(images)))


def timm_model(name, size):
    import timm

    return timm.create_model(name.partition(":")[2], num_classes=0, img_size=size)


# --- weights of others ------------------------------------------------------------------------------------------------


def started_from(path, network, size, **settings):
    config = load_config("smoke", {**SHORT, "network.name": network, "network.pretrained": str(path), **settings})
    return build_method(config, 3, (size, size)).online_encoder.backbone


def test_weights_for_224_pixels_start_a_vit_for_32(tmp_path):
    import timm

    theirs = timm.create_model("vit_tiny_patch16_224")  # with its head
    save_file(theirs.state_dict(), tmp_path / "x.safetensors")
    backbone = started_from(tmp_path / "x.safetensors", "timm:vit_tiny_patch16_224", 32)
    assert backbone.pos_embed.shape == (1, 5, 192), "resampled from 14 x 14 to 2 x 2"
    assert torch.equal(backbone.blocks[3].attn.qkv.weight, theirs.blocks[3].attn.qkv.weight)


@pytest.mark.parametrize("registers", [0, 4])
def test_names_of_dinov2_itself(tmp_path, registers):
    """Its files have a mask token, positions for 518 pixels and, where there are, registers of another name."""
    import timm

    name = "vit_small_patch14_reg4_dinov2" if registers else "vit_small_patch14_dinov2"
    theirs = timm.create_model(name, num_classes=0)
    tensors = {key.replace("reg_token", "register_tokens"): tensor for key, tensor in theirs.state_dict().items()}
    if registers:  # timm has the class token's position in the token
        tensors["pos_embed"] = torch.cat([torch.zeros(1, 1, 384), tensors["pos_embed"]], dim=1)
    save_file({**tensors, "mask_token": torch.zeros(1, 384)}, tmp_path / "dinov2.safetensors")
    backbone = started_from(tmp_path / "dinov2.safetensors", f"timm:{name}", 56)
    assert torch.equal(backbone.blocks[11].ls2.gamma, theirs.blocks[11].ls2.gamma)
    assert backbone.pos_embed.shape[1] == 16 + (not registers)
    torch.testing.assert_close(backbone.cls_token, theirs.cls_token)


def test_weights_of_torchvision_start_the_same_resnet_of_timm(tmp_path):
    from torchvision.models import resnet18

    theirs = resnet18()
    save_file(theirs.state_dict(), tmp_path / "x.safetensors")
    for network in ("timm:resnet18", "torchvision:resnet18"):
        backbone = started_from(tmp_path / "x.safetensors", network, 32)
        assert torch.equal(backbone.layer4[1].conv2.weight, theirs.layer4[1].conv2.weight)


def test_a_weight_file_of_another_model_names_the_keys(tmp_path):
    import timm

    save_file(timm.create_model("resnet18", num_classes=0).state_dict(), tmp_path / "x.safetensors")
    with pytest.raises(FedsslError, match=r"another network: missing: cls_token, .* more; not of this network: bn1"):
        started_from(tmp_path / "x.safetensors", "timm:vit_tiny_patch16_224", 32)


def test_an_export_goes_on_in_fedssl(exported, tmp_path):
    name, folder, _, _ = exported
    width = {"network.width": WIDTHS[name]} if name in WIDTHS else {}
    backbone = started_from(folder / "model.safetensors", name, NETWORKS[name], **width)
    wanted = Weights(load_file(folder / "model.safetensors")).tensors()
    assert all(torch.equal(tensor, wanted[key]) for key, tensor in backbone.state_dict().items())


@pytest.mark.parametrize(("name", "resampling"), [("test_vit", "bicubic"), ("test_resnet", "bilinear")])
def test_size_and_resampling_of_published_weights_are_those_of_timms_own_transform(tmp_path, name, resampling):
    """From an encoder for 160 pixels through a run to a hub folder: timm and fedssl see the same image."""
    import timm

    save_file(timm.create_model(name, num_classes=0).state_dict(), tmp_path / "x.safetensors")
    write_folder(tmp_path / "photos", each=8, size=300)
    settings = {key: value for key, value in SHORT.items() if not key.startswith("data.")}
    settings |= {"network.name": f"timm:{name}", "data.path": str(tmp_path / "photos")}
    load("continue", settings | {"network.pretrained": str(tmp_path / "x.safetensors")}).run(tmp_path / "run")
    export_encoder(tmp_path / "run", tmp_path / "out", ["hub"])
    model = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True)
    about = timm.data.resolve_model_data_config(model)
    assert (about["input_size"], about["interpolation"]) == ((3, 160, 160), resampling)
    transform = timm.data.create_transform(**about | {"mean": (0, 0, 0), "std": (1, 1, 1)})
    file = tmp_path / "photos" / "000.png"
    ours = decode_file(io.BytesIO(file.read_bytes()), open_encoder(tmp_path / "out").decoding).pixels
    theirs = transform(Image.open(file).convert("RGB"))
    torch.testing.assert_close(torch.from_numpy(ours) / 255, theirs, rtol=0, atol=1 / 255)


def test_a_folder_of_timms_hub_says_what_its_weights_saw(tmp_path):
    """By the config.json that timm itself writes beside them, not by the default weights of that name."""
    import timm

    own = {"mean": (0.1, 0.2, 0.3), "std": (1.0, 0.5, 0.25), "input_size": (3, 96, 96), "interpolation": "bilinear"}
    made = timm.create_model("test_vit", pretrained_cfg_overlay=own)
    timm.models.save_for_hf(made, tmp_path, safe_serialization=True)
    settings = {"network.name": "timm:test_vit", "network.pretrained": str(tmp_path)}
    config, _ = like_start(load_config("continue", settings))
    given = {name: config.network.model_extra[name] for name in ("mean", "std")}
    assert given == {name: list(own[name]) for name in given}
    assert (config.data.settings["image_size"], config.data.settings["resampling"]) == (96, "bilinear")
    backbone = build_method(config, 3, (96, 96)).online_encoder.backbone
    assert backbone.normalise.std.flatten().tolist() == [1.0, 0.5, 0.25]


# --- names and sizes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("timm:resnet81", 32, r"timm has no classification network 'resnet81' \(did you mean 'resnet18' or 'resnet"),
        ("torchvision:resnet81", 32, r"torchvision has no .* 'resnet81' \(did you mean 'resnet18' or 'resnet"),
        ("timm:hf-hub:timm/resnet18.a1_in1k", 32, "timm has no classification network 'hf-hub:"),
        ("timm:vit_tiny_patch16_224", 50, "multiples of its patch size 16, not 50x50: set data.image_size = 48"),
        ("torchvision:maxvit_t", 64, "fails on images of 3x64x64: .*it takes 224x224"),
    ],
)
def test_what_the_library_does_not_have_or_take(name, size, message):
    with pytest.raises(FedsslError, match=message):
        feature_size(find_backbone(name, image_size=(size, size))(3), 3, (size, size))


def test_patches_that_overlap_need_no_multiple_of_their_side():
    assert feature_size(find_backbone("timm:pvt_v2_b0", image_size=(64, 64))(3), 3, (64, 64)) == 256


@pytest.mark.parametrize("name", [*(name for name in NETWORKS if ":" in name), "timm:swin_tiny_patch4_window7_224"])
def test_blocks_stand_in_the_order_in_which_they_see_an_image(name):
    """So freezing the first leaves those alone that come after them."""
    side = NETWORKS.get(name, 64)
    backbone, seen = find_backbone(name, image_size=(side, side))(3).eval(), []
    blocks = blocks_of(backbone)
    places = {parameter: number for number, block in enumerate(blocks) for parameter in block.parameters}
    for path, module in backbone.named_modules():
        for leaf, _ in module.named_parameters(recurse=False) if path else ():
            module.register_forward_pre_hook(lambda *_, number=places[f"{path}.{leaf}"]: seen.append(number))
    with torch.no_grad():
        backbone(torch.rand(1, 3, side, side))
    assert list(dict.fromkeys(seen)) == list(range(len(blocks)))


@pytest.mark.parametrize("name", ["timm:resnet18", "timm:vit_tiny_patch16_224", "torchvision:resnet18"])
@pytest.mark.parametrize("channels", [1, 5])
def test_images_of_other_channels(name, channels):
    backbone = find_backbone(name, image_size=(32, 32))(channels)
    assert feature_size(backbone, channels, (32, 32)) in (192, 512)


def test_create_model_by_import_path_works_as_ever():
    settings = {"network.name": "timm:create_model", "network.model_name": "resnet18", "network.num_classes": 0}
    config = fedssl.load("smoke", SHORT | settings).config
    assert build_method(config, 3, (32, 32)).online_encoder.backbone.num_features == 512
