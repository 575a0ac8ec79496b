"""Blocks of a backbone: found by names as our networks, timm, torchvision and DINOv2 give them."""

import pytest
import torch
from torch import nn

from fedssl.core.errors import FedsslError
from fedssl.networks.backbones import convnet, resnet18, resnet50
from fedssl.networks.blocks import blocks_of, freeze, frozen_names
from fedssl.networks.convnext import convnext_atto
from fedssl.networks.vit import vit_tiny


def named(*names):
    """A module with a parameter of each name: 2-D where it ends in weight, unless it is of a norm."""
    root = nn.Module()
    for name in names:
        *path, leaf = name.split(".")
        module = root
        for part in path:
            if part not in dict(module.named_children()):
                module.add_module(part, nn.Module())
            module = getattr(module, part)
        flat = leaf == "bias" or any(word in name for word in ("norm", "bn", "ln_"))
        module.register_parameter(leaf, nn.Parameter(torch.zeros(2) if flat else torch.zeros(2, 2)))
    return root


def names(backbone):
    return [block.name for block in blocks_of(backbone)]


def test_our_networks():
    assert names(convnet(3, width=4)) == ["conv1", "conv2", "conv3", "conv4"]
    assert blocks_of(convnet(3, width=4))[1].parameters == ("conv2.weight", "bn2.weight", "bn2.bias")
    assert names(convnet(3, width=4, stem="whitened")) == ["conv1", "conv2", "conv3", "conv4"]
    assert names(resnet18(3, width=4)) == ["conv1", *(f"layer{s}.{b}" for s in range(1, 5) for b in range(2))]
    assert len(blocks_of(resnet50(3, width=4))) == 1 + 3 + 4 + 6 + 3
    assert blocks_of(resnet18(3, width=4))[0].parameters == ("conv1.weight", "bn1.weight", "bn1.bias")
    assert names(vit_tiny(3, width=16, depth=3)) == ["stem", "blocks.0", "blocks.1", "blocks.2"]
    assert names(convnext_atto(3, width=8))[:4] == ["stem", "stages.0.blocks.0", "stages.0.blocks.1", "stages.1"]
    assert "layer2.0.shortcut.1.bias" in blocks_of(resnet18(3, width=4))[3].parameters


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        (  # timm and DINOv2 ViT
            [
                "cls_token",
                "pos_embed",
                "patch_embed.proj.weight",
                "blocks.0.norm1.weight",
                "blocks.0.attn.qkv.weight",
                "blocks.1.mlp.fc1.weight",
                "blocks.1.ls1.gamma",
                "norm.weight",
            ],
            {"stem": 3, "blocks.0": 2, "blocks.1": 3},
        ),
        (  # torchvision ViT
            [
                "class_token",
                "conv_proj.weight",
                "encoder.pos_embedding",
                "encoder.layers.encoder_layer_0.ln_1.weight",
                "encoder.layers.encoder_layer_0.mlp.0.weight",
                "encoder.layers.encoder_layer_1.mlp.3.weight",
                "encoder.ln_.weight",
            ],
            {"stem": 3, "encoder.layers.encoder_layer_0": 2, "encoder.layers.encoder_layer_1": 2},
        ),
        (  # timm ConvNeXt
            [
                "stem.0.weight",
                "stem.1.weight",
                "stages.0.blocks.0.conv_dw.weight",
                "stages.0.blocks.1.mlp.fc1.weight",
                "stages.1.downsample.0.bias",
                "stages.1.downsample.1.weight",
                "stages.1.blocks.0.conv_dw.weight",
                "norm_pre.weight",
            ],
            {"stem": 2, "stages.0.blocks.0": 1, "stages.0.blocks.1": 1, "stages.1": 2, "stages.1.blocks.0": 2},
        ),
        (  # torchvision MobileNet v3
            [
                "features.0.0.weight",
                "features.0.1.bias",
                "features.1.block.0.0.weight",
                "features.1.block.1.0.weight",
                "features.2.0.weight",
            ],
            {"features.0.0": 2, "features.1": 2, "features.2.0": 1},
        ),
        (  # timm MobileNet v3
            [
                "conv_stem.weight",
                "bn1.weight",
                "blocks.0.0.conv_dw.weight",
                "blocks.1.0.conv_pw.weight",
                "conv_head.weight",
                "bn2.weight",
            ],
            {"stem": 2, "blocks.0.0": 1, "blocks.1.0": 3},
        ),
        (["embed.weight", "embed.bias"], {"stem": 2}),
    ],
)
def test_names_of_other_libraries(parameters, expected):
    assert {block.name: len(block.parameters) for block in blocks_of(named(*parameters))} == expected


def test_frozen_blocks_keep_parameters_and_statistics():
    backbone = resnet18(3, width=4)
    fixed = frozen_names(backbone, 2)
    assert {"conv1.weight", "bn1.running_var", "layer1.0.bn2.num_batches_tracked"} < fixed
    assert not any(name.startswith(("layer1.1", "layer2")) for name in fixed)
    backbone.train()
    freeze(backbone, 2)
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    backbone(torch.rand(4, 3, 16, 16)).sum().backward()
    changed = {name for name, tensor in backbone.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {n for n in before if n.rpartition(".")[2] in ("running_mean", "running_var")} - fixed | {
        n for n in before if n.endswith("num_batches_tracked") and n not in fixed
    }
    trained = {name for name, parameter in backbone.named_parameters() if parameter.grad is not None}
    assert trained == {name for name, _ in backbone.named_parameters()} - fixed
    assert backbone.layer1.training
    assert not backbone.layer1[0].bn1.training


def test_freezing_a_stage_with_a_downsample_leaves_its_blocks():
    backbone = named("stem.0.weight", "stages.1.downsample.1.weight", "stages.1.blocks.0.conv.weight")
    freeze(backbone, 2)
    assert not backbone.stages.get_submodule("1").downsample.training
    assert backbone.stages.get_submodule("1").blocks.get_submodule("0").training


def test_freezing_all_is_refused_and_names_the_blocks():
    with pytest.raises(FedsslError, match=r"freeze: 4 leaves nothing.*4 blocks: conv1, conv2, conv3, conv4"):
        freeze(convnet(3, width=4), 4)
    freeze(named("embed.weight"), 0)
