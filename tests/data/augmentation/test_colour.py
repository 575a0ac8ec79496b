import colorsys
import math

import kornia
import pytest
import torch

from fedssl.data.augmentation import colour

IMAGES = torch.rand(6, 3, 7, 5, generator=torch.Generator().manual_seed(0))
IMAGES[0, :, 0] = 0.5  # grey pixels have no hue
IMAGES[1, :, 0] = torch.tensor([1.0, 0.0, 1.0]).view(3, 1)  # two channels the largest
IMAGES[2, :, 0] = torch.tensor([0.2, 0.9, 0.9]).view(3, 1)
IMAGES[3, :, 0] = torch.tensor([0.7, 0.7, 0.1]).view(3, 1)
FACTORS = torch.tensor([0.0, 0.2, 0.8, 1.0, 1.3, 1.8])


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (colour.change_brightness, kornia.enhance.adjust_brightness_accumulative),
        (colour.change_contrast, kornia.enhance.adjust_contrast_with_mean_subtraction),
        (colour.change_saturation, kornia.enhance.adjust_saturation_with_gray_subtraction),
    ],
)
def test_factors_as_kornia(ours, theirs):
    torch.testing.assert_close(ours(IMAGES, FACTORS), theirs(IMAGES, FACTORS), atol=1e-5, rtol=0)


def test_by_hand():
    pixel = torch.tensor([0.2, 0.4, 0.8]).view(1, 3, 1, 1)
    luma = 0.299 * 0.2 + 0.587 * 0.4 + 0.114 * 0.8  # 0.3858
    half, double = torch.tensor([0.5]), torch.tensor([2.0])

    def near(*values):
        return pytest.approx(values, abs=1e-6)

    blend = near(*(0.5 * (x + luma) for x in (0.2, 0.4, 0.8)))
    assert colour.grey(pixel).flatten().tolist() == near(luma)
    assert colour.change_brightness(pixel, double).flatten().tolist() == near(0.4, 0.8, 1.0)
    assert colour.change_saturation(pixel, half).flatten().tolist() == blend
    assert colour.change_contrast(pixel, half).flatten().tolist() == blend  # the mean of one pixel is its luma
    assert colour.change_contrast(pixel, double).flatten().tolist() == near(0.4 - luma, 0.8 - luma, 1.0)


def test_hue_as_colorsys():
    turns = torch.tensor([-0.5, -0.2, -0.05, 0.1, 0.3, 0.5])
    turned = colour.turn_hue(IMAGES, turns)
    for image, turn, result in zip(IMAGES, turns.tolist(), turned, strict=True):
        for pixel, got in zip(image.flatten(1).T.tolist(), result.flatten(1).T.tolist(), strict=True):
            hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
            assert got == pytest.approx(colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value), abs=1e-5)


def test_hue_as_kornia():
    turns = torch.tensor([-0.2, -0.1, 0.0, 0.05, 0.1, 0.2])
    expected = kornia.enhance.adjust_hue(IMAGES, turns * 2 * math.pi)
    torch.testing.assert_close(colour.turn_hue(IMAGES, turns), expected, atol=1e-4, rtol=0)


def test_one_channel():
    image = IMAGES[:, :1]
    assert torch.equal(colour.grey(image), image)
    expected = kornia.enhance.adjust_contrast_with_mean_subtraction(image, FACTORS)
    torch.testing.assert_close(colour.change_contrast(image, FACTORS), expected, atol=1e-5, rtol=0)
