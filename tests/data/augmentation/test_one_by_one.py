import dataclasses

import kornia
import numpy as np
import pytest
import torch
from PIL import Image

from fedssl.core.view_groups import ViewGroup
from fedssl.data.augmentation import one_by_one, views
from fedssl.data.augmentation.parameters import draw_parameters
from fedssl.data.augmentation.recipes import Recipe

CROP_ONLY = Recipe(flip=0.0, jitter=0.0, grey=0.0)
ALL = Recipe(blur=0.5, solarise=0.5, upside_down=0.5, quarter_turn=0.5)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def photos(count, height, width, channels=3):
    """Smooth, as photos are, with some noise."""
    coarse = torch.rand(count, channels, 6, 6, generator=generator())
    smooth = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic").clamp(0, 1)
    noise = 20 * torch.randn(smooth.shape, generator=generator(1))
    return (255 * smooth + noise).clamp(0, 255).to(torch.uint8)


@pytest.mark.parametrize(("size", "output"), [((96, 96), 96), ((128, 100), 128), ((224, 224), 224), ((224, 224), 96)])
def test_crops_are_pils_within_one_of_255(size, output):
    pixels = photos(6, *size)
    parameters = draw_parameters(6, size, CROP_ONLY, generator())
    found = views.apply_parameters(pixels, parameters, (output, output))
    for number, image in enumerate(pixels.permute(0, 2, 3, 1).numpy()):
        top, left, height, width = (
            int(values[number]) for values in (parameters.top, parameters.left, parameters.height, parameters.width)
        )
        crop = Image.fromarray(image).crop((left, top, left + width, top + height))
        expected = np.asarray(crop.resize((output, output), Image.Resampling.BILINEAR)) / 255
        assert abs(found[number].permute(1, 2, 0).numpy() - expected).max() < 1.001 / 255


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_as_all_images_together(channels):
    """The same decisions by the path of small images: what uint8 rounds by half a step, jitter may double."""
    pixels = photos(12, 72, 72, channels)
    parameters = draw_parameters(12, (72, 72), dataclasses.replace(ALL, solarise=0.0), generator())
    expected = views._apply_together(pixels, parameters, (72, 72))
    found = one_by_one.apply_parameters(pixels, parameters, (72, 72))
    assert (found - expected).abs().mean() < 1 / 255
    assert (found - expected).abs().amax(dim=(1, 2, 3)).median() < 4 / 255
    assert found.is_contiguous(memory_format=torch.channels_last)
    solarised = dataclasses.replace(parameters, solarise=torch.ones(12, dtype=torch.bool))
    dark = found < 128 / 255
    torch.testing.assert_close(
        one_by_one.apply_parameters(pixels, solarised, (72, 72)), torch.where(dark, found, 1 - found)
    )


def test_small_images_stay_on_their_path():
    pixels = photos(3, 64, 64)
    parameters = draw_parameters(3, (64, 64), ALL, generator())
    assert torch.equal(views.apply_parameters(pixels, parameters), views._apply_together(pixels, parameters, (64, 64)))


@pytest.mark.parametrize("sigma", [0.1, 0.7, 2.0])
def test_blur_as_kornia(sigma):
    images = photos(2, 100, 80) / 255
    expected = kornia.filters.gaussian_blur2d(images, 9, torch.full((2, 2), sigma))
    torch.testing.assert_close(one_by_one.blur(images, sigma), expected, atol=2e-5, rtol=0)


def test_views_by_generator_alone_and_images_unchanged():
    pixels = photos(4, 80, 72)
    before = pixels.clone()
    groups = (ViewGroup(2), ViewGroup(1, part=0.5))
    first, again = (views.make_views(pixels, Recipe(blur=0.5), generator(3), groups) for _ in range(2))
    assert [tuple(view.shape) for view in first] == [(4, 3, 80, 72), (4, 3, 80, 72), (4, 3, 40, 36)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert all(view.min() >= 0 and view.max() <= 1 for view in first)
    assert torch.equal(pixels, before)
    assert views.augment(pixels[:0], Recipe(), generator()).shape == (0, 3, 80, 72)
