"""An epoch never asks the device for a value: on a GPU each such question would wait for all work before it."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from fedssl.data.augmentation.recipes import RECIPES
from fedssl.federation.local_training import LocalTraining, train_locally
from fedssl.methods import METHODS
from fedssl.networks.backbones import convnet
from fedssl.networks.heads import HeadSizes

WAITS = {"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal"}
PIXELS = torch.randint(0, 256, (24, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["byol", "simclr", "simsiam", "mocov2", "vicreg", "barlow", "dino"])
@pytest.mark.parametrize("settings", [{}, {"optimizer": "lars", "clip_gradient": 1.0, "accumulate": 2}])
def test_no_value_is_asked_for_inside_an_epoch(name, settings):
    backbone = convnet(3, width=4)
    method = METHODS[name](backbone, backbone(torch.zeros(2, 3, 16, 16)).shape[1], HeadSizes(16, 8))
    traced = []

    def progress(text, done, total, images):
        """The second step begins and ends the trace: the first warms up, the last is reported."""
        if done == 1:
            traced.append(profile(activities=[ProfilerActivity.CPU]))
            traced[0].__enter__()
        elif done == 2:
            traced[0].__exit__(None, None, None)

    training = LocalTraining(epochs=1, batch_size=8, **settings)
    train_locally(method, PIXELS, RECIPES["dino"](), training, 0.1, 0, progress)
    names = {event.key for event in traced[0].key_averages()}
    assert "aten::convolution" in names or "aten::conv2d" in names
    assert not names & WAITS
