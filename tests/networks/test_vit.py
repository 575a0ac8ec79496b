import math

import pytest
import torch
from torch import nn

from fedssl.core.errors import FedsslError
from fedssl.experiment.build.parts import build
from fedssl.experiment.config.layers import load_config
from fedssl.networks.backbones import feature_size
from fedssl.networks.vit import positions, vit_tiny


@pytest.fixture
def network():
    torch.manual_seed(0)
    return vit_tiny(3, width=128, depth=2).eval()


def test_parameters_of_vit_tiny():
    assert sum(parameter.numel() for parameter in vit_tiny(3).parameters()) == 5_348_160
    assert feature_size(vit_tiny(3, depth=1), 3, (32, 32)) == 192


def test_positions_by_hand():
    """Width 8: two frequencies, 1 and 1/100; sines and cosines of the column, then of the row."""
    found = positions(2, 3, 8)
    assert found.shape == (2, 3, 8)
    angles = {"column": (2.0, 0.02), "row": (1.0, 0.01)}
    wanted = [fn(a) for which in ("column", "row") for fn in (math.sin, math.cos) for a in angles[which]]
    torch.testing.assert_close(found[1, 2], torch.tensor(wanted))
    assert len(found.flatten(0, 1).unique(dim=0)) == 6, "every place has its own"


def test_a_block_is_pytorchs_own_encoder_layer(network):
    block, x = network.blocks[0], torch.randn(3, 5, 128)
    layer = nn.TransformerEncoderLayer(128, 2, 512, 0.0, "gelu", 1e-6, batch_first=True, norm_first=True).eval()
    pairs = {"self_attn.in_proj_": block.attn.qkv, "self_attn.out_proj.": block.attn.proj, "linear1.": block.mlp.fc1}
    pairs |= {"linear2.": block.mlp.fc2, "norm1.": block.norm1, "norm2.": block.norm2}
    layer.load_state_dict({f"{name}{leaf}": t for name, part in pairs.items() for leaf, t in part.state_dict().items()})
    torch.testing.assert_close(block(x), layer(x), rtol=1e-4, atol=1e-5)


def test_features_are_the_mean_of_the_tokens_of_all_patches(network):
    images = torch.rand(2, 3, 16, 24)
    patches = network.patches(images)
    assert patches.shape == (2, 4 * 6, 128)
    assert network.grid((16, 24)) == (4, 6)
    torch.testing.assert_close(network.tokens(patches).mean(dim=1), network(images))


def test_patches_are_in_rows_and_each_sees_its_own_pixels_alone(network):
    images = torch.rand(1, 3, 8, 12)
    changed = images.clone()
    changed[:, :, 4:8, 4:8] = 0.5  # second row, second column of 2 x 3
    differs = (network.patches(images) != network.patches(changed)).any(dim=2)
    assert differs.tolist() == [[False, False, False, False, True, False]]


def test_some_patches_can_be_encoded_without_the_others(network):
    patches = network.patches(torch.rand(2, 3, 16, 16))
    kept = torch.tensor([7, 2, 11])
    some = network.tokens(patches[:, kept])
    assert some.shape == (2, 3, 128)
    changed = patches.clone()
    changed[:, 5] += 1  # not among those kept
    assert torch.equal(network.tokens(changed[:, kept]), some)
    torch.testing.assert_close(network.tokens(patches[:, kept.flip(0)]).flip(1), some, rtol=1e-4, atol=1e-5)


def test_a_width_that_has_no_heads_is_refused():
    with pytest.raises(FedsslError, match=r"network\.width: 100: give a multiple of 64, or below that one of 4"):
        vit_tiny(3, width=100)


def test_a_run_says_which_pixels_no_patch_has():
    """Images, views, and DINO's small crops; where all fit, nothing."""
    network = {"network.name": "vit-tiny", "network.width": 8, "network.depth": 1, "network.patch_size": 8}
    small = {"data.image_size": 30, "augmentation.output_size": 24, "method.name": "dino", "method.local_views": 1}
    remarks = build(load_config("smoke", small | network)).remarks
    rest = "its patches have 8; give sides that are multiples"
    assert f"vit-tiny sees 24 x 24 of the 30 x 30 pixels of images: {rest}" in remarks
    assert f"vit-tiny sees 8 x 8 of the 12 x 12 pixels of views: {rest}" in remarks
    whole = build(load_config("smoke", network | {"data.image_size": 16})).remarks
    assert not any("vit-tiny" in text for text in [*whole, *(text for text in remarks if "24 x 24 pixels" in text)])


def test_images_smaller_than_a_patch_are_refused_with_a_size_that_fits():
    with pytest.raises(FedsslError, match=r"fails on images of 3x5x5: .*; it takes 28x28"):
        feature_size(vit_tiny(3, width=4, depth=1, patch_size=8), 3, (5, 5))
