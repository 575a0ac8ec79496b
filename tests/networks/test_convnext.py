import pytest
import torch
import torch.nn.functional as F

from fedssl.core.errors import FedsslError
from fedssl.networks.backbones import feature_size
from fedssl.networks.convnext import convnext_atto


def test_parameters_of_convnext_atto():
    assert sum(parameter.numel() for parameter in convnext_atto(3).parameters()) == 3_373_080
    assert feature_size(convnext_atto(3), 3, (32, 32)) == 320


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_the_network_by_plain_functions_over_its_weights(layout):
    torch.manual_seed(0)
    network = convnext_atto(3, width=4).eval()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)  # gamma and biases too, so that each counts
    images = torch.rand(2, 3, 48, 32)
    found = network.to(memory_format=layout)(images.contiguous(memory_format=layout))
    torch.testing.assert_close(found, by_hand(network.state_dict(), images), rtol=1e-3, atol=1e-4)


def by_hand(w, x):
    def norm(x, name):  # over channels, which are second
        mean, var = x.mean(1, keepdim=True), x.var(1, unbiased=False, keepdim=True)
        shape = (1, -1, *[1] * (x.ndim - 2))
        return (x - mean) / (var + 1e-6).sqrt() * w[f"{name}.weight"].view(shape) + w[f"{name}.bias"].view(shape)

    x = norm(F.conv2d(x, w["stem.0.weight"], w["stem.0.bias"], stride=2), "stem.1")
    for stage, depth in enumerate((2, 2, 6, 2)):
        at = f"stages.{stage}"
        if stage:
            x = norm(x, f"{at}.downsample.0")
            x = F.conv2d(x, w[f"{at}.downsample.1.weight"], w[f"{at}.downsample.1.bias"], stride=2)
        for index in range(depth):
            b = f"{at}.blocks.{index}"
            y = F.conv2d(x, w[f"{b}.conv_dw.weight"], w[f"{b}.conv_dw.bias"], padding=3, groups=x.shape[1])
            y = norm(y, f"{b}.norm")
            y = F.gelu(F.conv2d(y, w[f"{b}.mlp.fc1.weight"][..., None, None], w[f"{b}.mlp.fc1.bias"]))
            y = F.conv2d(y, w[f"{b}.mlp.fc2.weight"][..., None, None], w[f"{b}.mlp.fc2.bias"])
            x = x + w[f"{b}.gamma"].view(1, -1, 1, 1) * y
    return norm(x.mean(dim=(2, 3)), "head.norm")


def test_images_that_are_too_small_are_refused_with_a_size_that_fits():
    with pytest.raises(FedsslError, match=r"fails on images of 3x8x8: .*; it takes 28x28"):
        feature_size(convnext_atto(3, width=4), 3, (8, 8))
