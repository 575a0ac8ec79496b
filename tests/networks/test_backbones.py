import sys
import types

import pytest
import torch
from torch import nn

from fedssl.core.errors import FedsslError
from fedssl.core.seeding import global_stream
from fedssl.core.weights import Weights
from fedssl.networks.backbones import (
    BACKBONES,
    AveragePool,
    ShortcutConv,
    feature_size,
    find_backbone,
    resnet18,
    resnet50,
)
from fedssl.networks.heads import Encoder, HeadSizes, mlp


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_parameter_counts_of_the_paper():
    backbone = resnet18(3)
    encoder = Encoder(backbone, mlp(512, HeadSizes()))
    predictor = mlp(2048, HeadSizes())
    assert count(backbone) == 11_168_832  # 11.17 M
    assert count(encoder) == 21_668_928  # 21.67 M
    assert count(predictor) == 16_791_552  # 16.79 M
    assert count(encoder) + count(predictor) == 38_460_480  # 154 MB in fp32


def test_resnet50_has_23_million_parameters_and_2048_features():
    assert count(resnet50(3)) == 23_500_352
    assert feature_size(resnet50(3, width=8), 3, (32, 32)) == 256
    assert resnet50(3, width=64).layer4[-1].conv3.out_channels == 2048


def test_pooling_is_the_papers_4x4_on_32_pixel_images():
    torch.manual_seed(0)
    backbone = resnet18(3, width=8).eval()
    maps = []
    backbone.pool.register_forward_hook(lambda _, inputs, output: maps.append((inputs[0], output)))
    backbone(torch.rand(2, 3, 32, 32))
    before, after = maps[0]
    assert before.shape == (2, 64, 4, 4)
    torch.testing.assert_close(after, nn.AvgPool2d(4)(before))


SIZES = [(32, 32), (28, 28), (47, 64), (5, 5)]
HALVES = {"convnext-atto": 16}  # four times, as ConvNeXt does: so many pixels at least


@pytest.mark.parametrize(
    ("name", "size"), [(name, size) for name in BACKBONES for size in SIZES if min(size) >= HALVES.get(name, 1)]
)
def test_any_image_size_and_channel_count(name, size):
    backbone = BACKBONES[name](1, width=4)
    found = feature_size(backbone, 1, size)
    assert backbone.eval()(torch.rand(3, 1, *size)).shape == (3, found)


def test_width_scales_every_layer():
    assert count(resnet18(3, width=32)) == pytest.approx(count(resnet18(3)) / 4, rel=0.02)


def begun(name, **settings):
    with global_stream(0, "initial-weights"):
        return BACKBONES[name](3, **settings)


@pytest.mark.parametrize(("init", "std"), [("he", 0.0589), ("pytorch", 0.0241)])
def test_initial_weights_of_the_first_block(init, std):
    """3x3 over 64 channels: He's is sqrt(2 / 576); PyTorch's, uniform up to 1 / sqrt(576), is 1 / sqrt(3 * 576)."""
    weight = begun("resnet18", init=init).layer1[0].conv1.weight
    assert weight.std().item() == pytest.approx(std, rel=0.01)


def test_pytorchs_initial_weights_are_in_the_bounds_of_every_layer():
    for module in begun("resnet50", width=8, init="pytorch").modules():
        if isinstance(module, nn.Conv2d):
            fan_in = module.in_channels * module.kernel_size[0] ** 2
            assert 0.8 * fan_in**-0.5 < module.weight.abs().max() <= fan_in**-0.5


@pytest.mark.parametrize("name", ["resnet10", "resnet18", "resnet50"])
def test_initial_weights_follow_from_the_seed_and_are_hes_unless_said(name):
    as_ever, he, pytorch, again = (
        Weights.of(begun(name, width=4, **settings)).digest()
        for settings in ({}, {"init": "he"}, {"init": "pytorch"}, {"init": "pytorch"})
    )
    assert as_ever == he != pytorch == again


def test_mlp_is_linear_batchnorm_relu_linear():
    layers = mlp(6, HeadSizes(5, 4))
    assert [type(layer) for layer in layers] == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]
    assert (layers[0].in_features, layers[0].out_features, layers[3].out_features) == (6, 5, 4)


@pytest.fixture
def user_module(monkeypatch):
    module = types.ModuleType("my_nets")
    module.tiny = lambda channels, depth=2: nn.Sequential(nn.Flatten(), nn.LazyLinear(depth))
    module.plain = lambda: nn.Sequential(nn.Conv2d(3, 7, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    module.maps = lambda: nn.Conv2d(3, 7, 3)
    module.not_a_module = lambda: 3
    module.value = 3
    monkeypatch.setitem(sys.modules, "my_nets", module)


def typed(name):
    """As of settings that name it."""
    return find_backbone(name, [name])


def test_users_module_by_import_path(user_module):
    backbone = typed("my_nets:plain")(3)
    assert feature_size(backbone, 3, (32, 32)) == 7
    assert feature_size(typed("my_nets:tiny")(3, depth=5), 3, (8, 8)) == 5


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet19", "there is no 'resnet19'"),
        ("my_nets:missing", "cannot import"),
        ("no_such_package:net", "cannot import"),
        ("my_nets:value", "is no function or class"),
    ],
)
def test_a_network_that_cannot_be_found_is_named(user_module, name, message):
    with pytest.raises(FedsslError, match=message):
        typed(name)


def test_unusable_user_modules_are_explained(user_module):
    with pytest.raises(FedsslError, match=r"not a torch\.nn\.Module"):
        typed("my_nets:not_a_module")(3)
    with pytest.raises(FedsslError, match="does not accept these settings"):
        typed("my_nets:plain")(3, depth=3)
    with pytest.raises(FedsslError, match="one vector per image"):
        feature_size(typed("my_nets:maps")(3), 3, (32, 32))
    with pytest.raises(FedsslError, match="fails on images of 1x32x32"):
        feature_size(typed("my_nets:plain")(3), 1, (32, 32))


def test_feature_size_leaves_the_backbone_as_it_was():
    backbone = resnet18(3, width=4)
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    feature_size(backbone, 3, (32, 32))
    assert backbone.training
    assert all(torch.equal(before[name], tensor) for name, tensor in backbone.state_dict().items())


@pytest.mark.parametrize("name", [name for name in BACKBONES if name.startswith(("res", "convnet"))])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_images_and_gradients_keep_their_memory_format_through_the_network(name, layout):
    """One layer that changes it makes the next work on two layouts, or copies; that is silent and slow."""
    backbone = BACKBONES[name](3, width=16).to(memory_format=layout)
    seen = []

    def look(module, given, made):
        kind = type(module).__name__
        seen.append((kind, made))
        made.register_hook(lambda gradient: seen.append((f"gradient of {kind}", gradient)))

    for module in backbone.modules():
        if isinstance(module, nn.Conv2d | nn.BatchNorm2d | nn.ReLU):
            module.register_forward_hook(look)
    backbone(torch.rand(4, 3, 32, 32).contiguous(memory_format=layout)).square().sum().backward()
    assert len(seen) > 20
    assert {kind for kind, tensor in seen if not tensor.is_contiguous(memory_format=layout)} == set()


def test_average_pool_is_the_mean_over_positions_in_both_directions():
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    pooled = AveragePool()(x)
    assert torch.equal(pooled, x.mean(dim=(2, 3), keepdim=True))
    torch.autograd.gradcheck(AveragePool(), x)


@pytest.mark.parametrize("channels", [1, 4, 7, 8, 12, 16, 24])
def test_shortcuts_of_narrow_networks_are_right_in_either_memory_format(channels):
    """oneDNN's own strided 1x1 convolution is wrong here, or ends the process: see ShortcutConv."""
    shortcut = ShortcutConv(channels, 2 * channels, 1, stride=2, bias=False)
    images, wanted = torch.rand(8, channels, 16, 16), torch.rand(8, 2 * channels, 8, 8)
    for layout in (torch.contiguous_format, torch.channels_last):
        shortcut.to(memory_format=layout).zero_grad()
        made = shortcut(images.contiguous(memory_format=layout))
        made.backward(wanted.contiguous(memory_format=layout))
        picked = images[:, :, ::2, ::2]
        by_hand = torch.einsum("oc,nchw->nohw", shortcut.weight[:, :, 0, 0], picked)
        torch.testing.assert_close(made, by_hand)
        gradient = torch.einsum("nohw,nchw->oc", wanted, picked)
        torch.testing.assert_close(shortcut.weight.grad[:, :, 0, 0], gradient, rtol=1e-4, atol=1e-4)
