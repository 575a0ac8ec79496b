import dataclasses
import math

import kornia
import pytest
import torch
import torch.nn.functional as F

from fedssl.core.errors import FedsslError
from fedssl.core.settings import settings_of
from fedssl.core.view_groups import ViewGroup
from fedssl.data.augmentation.parameters import draw_parameters
from fedssl.data.augmentation.recipes import RECIPES, Recipe
from fedssl.data.augmentation.views import apply_parameters, augment, make_views

PIXELS = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def draw(count=20_000, size=(32, 32), seed=0, **settings):
    return draw_parameters(count, size, Recipe(**settings), generator(seed))


def reference(pixels, parameters, number, output):
    """One image, step by step, by torch's interpolation and kornia's colour functions."""
    box = (parameters.top, parameters.left, parameters.height, parameters.width)
    top, left, height, width = (int(values[number]) for values in box)
    image = pixels[number : number + 1, :, top : top + height, left : left + width].float() / 255
    image = F.interpolate(image, output, mode="bilinear", align_corners=False, antialias=True)
    if parameters.flip[number]:
        image = image.flip(3)
    if parameters.upside_down[number]:
        image = image.flip(2)
    if parameters.quarter_turn[number]:
        image = image.rot90(1, (2, 3))
    if parameters.jitter[number]:
        amounts = parameters.amounts[number]
        operations = {
            BRIGHTNESS: lambda x: kornia.enhance.adjust_brightness_accumulative(x, amounts[BRIGHTNESS]),
            CONTRAST: lambda x: kornia.enhance.adjust_contrast_with_mean_subtraction(x, amounts[CONTRAST]),
            SATURATION: lambda x: kornia.enhance.adjust_saturation_with_gray_subtraction(x, amounts[SATURATION]),
            HUE: lambda x: kornia.enhance.adjust_hue(x, amounts[HUE] * 2 * math.pi),
        }
        for operation in parameters.order[number].tolist():
            if pixels.shape[1] == 3 or operation in (BRIGHTNESS, CONTRAST):
                image = operations[operation](image)
    if parameters.grey[number] and pixels.shape[1] == 3:
        image = kornia.color.rgb_to_grayscale(image).expand(-1, 3, -1, -1)
    if parameters.blur[number]:
        radius = max(1, min(output) // 20)
        image = kornia.filters.gaussian_blur2d(image, 2 * radius + 1, parameters.sigma[number].expand(1, 2))
    if parameters.solarise[number]:
        image = kornia.enhance.solarize(image, thresholds=128 / 255)
    return image[0]


@pytest.mark.parametrize(
    ("shape", "output_size"),
    [((64, 3, 32, 32), 0), ((64, 1, 28, 28), 0), ((16, 3, 40, 52), 0), ((16, 3, 40, 52), 16), ((16, 3, 24, 24), 48)],
)
def test_whole_recipe_as_the_reference(shape, output_size):
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator())
    output = (output_size, output_size) if output_size else shape[2:]
    turned = 0.5 if output[0] == output[1] else 0.0
    parameters = draw(shape[0], shape[2:], blur=0.5, solarise=0.5, upside_down=0.5, quarter_turn=turned)
    got = apply_parameters(pixels, parameters, output)
    for number, image in enumerate(got):
        torch.testing.assert_close(image, reference(pixels, parameters, number, output), atol=1e-4, rtol=0)


def test_order_is_honoured_per_image():
    """Brightness 2 then contrast 0 gives the mean of the brightened image; contrast first, twice the plain mean."""
    pixels = torch.tensor([0, 51, 255, 255], dtype=torch.uint8).view(1, 1, 2, 2).expand(2, 1, 2, 2)
    parameters = dataclasses.replace(
        draw(2, (2, 2), crop_scale_min=1.0, crop_ratio_min=1.0, crop_ratio_max=1.0, flip=0.0, jitter=1.0),
        order=torch.tensor([[BRIGHTNESS, CONTRAST, SATURATION, HUE], [HUE, CONTRAST, SATURATION, BRIGHTNESS]]),
        amounts=torch.tensor([[2.0, 0.0, 1.0, 0.0]] * 2),
    )
    first, second = apply_parameters(pixels, parameters)
    assert first.flatten().tolist() == pytest.approx([(0 + 0.4 + 1 + 1) / 4] * 4)
    assert second.flatten().tolist() == pytest.approx([1.0] * 4)  # 2 · 0.55, clamped


def test_nothing_to_do_leaves_the_image():
    still = Recipe(crop_scale_min=1.0, crop_ratio_min=1.0, crop_ratio_max=1.0, flip=0.0, jitter=0.0, grey=0.0)
    torch.testing.assert_close(augment(PIXELS, still, generator()), PIXELS / 255, atol=1e-6, rtol=0)
    mirrored = dataclasses.replace(still, flip=1.0)
    torch.testing.assert_close(augment(PIXELS, mirrored, generator()), (PIXELS / 255).flip(3), atol=1e-6, rtol=0)


def test_views_are_floats_in_range_channels_last_and_differ():
    first, second = make_views(PIXELS, Recipe(blur=0.5), generator())
    for view in (first, second):
        assert view.dtype == torch.float32
        assert view.shape == PIXELS.shape
        assert view.is_contiguous(memory_format=torch.channels_last)
        assert view.min() >= 0
        assert view.max() <= 1
    assert (first - second).abs().flatten(1).mean(1).min() > 0.01
    white = augment(torch.full_like(PIXELS, 255), Recipe(brightness=0.0, contrast=0.0), generator())
    assert white.max() <= 1


def test_by_generator_only():
    first, again, other = (make_views(PIXELS, Recipe(), generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])
    state = torch.get_rng_state()
    make_views(PIXELS, Recipe(), generator())
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("count", [0, 1, 5, 32])
def test_two_views_are_one_view_twice(count):
    stream = generator(4)
    one_by_one = [augment(PIXELS[:count], Recipe(blur=0.5), stream) for _ in range(2)]
    for view, expected in zip(make_views(PIXELS[:count], Recipe(blur=0.5), generator(4)), one_by_one, strict=True):
        assert torch.equal(view, expected)


def test_images_are_not_changed():
    before = PIXELS.clone()
    augment(PIXELS, Recipe(blur=1.0, grey=1.0), generator())
    assert torch.equal(before, PIXELS)


def test_no_images():
    assert augment(PIXELS[:0], Recipe(blur=0.5), generator()).shape == (0, 3, 32, 32)


def test_rates():
    parameters = draw(flip=0.5, jitter=0.8, grey=0.2, blur=0.3)
    rates = {name: float(getattr(parameters, name).float().mean()) for name in ("flip", "jitter", "grey", "blur")}
    assert rates == pytest.approx({"flip": 0.5, "jitter": 0.8, "grey": 0.2, "blur": 0.3}, abs=0.015)
    never, always = draw(flip=0.0, jitter=0.0, grey=0.0, blur=0.0), draw(flip=1.0, jitter=1.0, grey=1.0, blur=1.0)
    for name in rates:
        assert not getattr(never, name).any()
        assert getattr(always, name).all()


def test_factors_are_uniform_in_their_ranges():
    amounts = draw(brightness=0.8, contrast=0.4, saturation=1.5, hue=0.2).amounts
    low, high = torch.tensor([0.2, 0.6, 0.0, -0.2]), torch.tensor([1.8, 1.4, 2.5, 0.2])
    assert (amounts >= low - 1e-6).all()
    assert (amounts <= high + 1e-6).all()
    torch.testing.assert_close(amounts.mean(0), (low + high) / 2, atol=0.02, rtol=0)
    torch.testing.assert_close(amounts.std(0), (high - low) / math.sqrt(12), atol=0.02, rtol=0)


def test_every_order_is_equally_likely():
    orders = (draw().order * torch.tensor([64, 16, 4, 1])).sum(1).unique(return_counts=True)[1]
    assert len(orders) == 24
    assert abs(orders - 20_000 / 24).max() < 150  # five standard deviations


def test_crops_are_torchvisions():
    """Box inside the image, area and ratio as drawn; compared with a loop that draws as torchvision's code does."""
    parameters = draw()
    top, left, height, width = parameters.top, parameters.left, parameters.height, parameters.width
    for start, length in ((top, height), (left, width)):
        assert start.min() == 0
        assert (start + length).max() == 32
        assert length.min() >= 1
        assert torch.equal(start, start.round())
    stream = generator(5)
    expected = torch.tensor([_loop_crop(32, 32, stream) for _ in range(5000)], dtype=torch.float32)
    got = torch.stack([top, left, height, width], dim=1)
    torch.testing.assert_close(got.mean(0), expected.mean(0), atol=0.45, rtol=0)
    torch.testing.assert_close(got.std(0), expected.std(0), atol=0.3, rtol=0)
    areas = (got[:, 2] * got[:, 3]).quantile(torch.tensor([0.1, 0.5, 0.9]))
    torch.testing.assert_close(
        areas, (expected[:, 2] * expected[:, 3]).quantile(torch.tensor([0.1, 0.5, 0.9])), atol=30, rtol=0
    )


def _loop_crop(full_height, full_width, stream):
    def uniform(low, high):
        return low + (high - low) * float(torch.rand((), generator=stream))

    for _ in range(10):
        area = full_height * full_width * uniform(0.08, 1.0)
        ratio = math.exp(uniform(math.log(3 / 4), math.log(4 / 3)))
        width, height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < width <= full_width and 0 < height <= full_height:
            top = int(torch.randint(0, full_height - height + 1, (), generator=stream))
            left = int(torch.randint(0, full_width - width + 1, (), generator=stream))
            return top, left, height, width
    return 0, 0, full_height, full_width  # square images only


@pytest.mark.parametrize(
    ("size", "box"),
    [
        ((10, 40), (0, 13, 10, 13)),  # too wide: full height, width 10 · 4/3
        ((40, 10), (13, 0, 13, 10)),  # too high: full width, height 10 / (3/4)
    ],
)
def test_centred_crop_when_no_try_fits(size, box):
    """The whole area at a ratio near 1 never fits into a long image."""
    parameters = draw(50, size, crop_scale_min=1.0)
    for values, expected in zip(
        (parameters.top, parameters.left, parameters.height, parameters.width), box, strict=True
    ):
        assert values.tolist() == [expected] * 50


def test_recipes():
    assert RECIPES["simclr"]() == Recipe()
    weak = RECIPES["weak-jitter"]()
    assert (weak.brightness, weak.contrast, weak.saturation, weak.hue) == (0.4, 0.4, 0.4, 0.1)
    assert (weak.jitter, weak.grey, weak.crop_scale_min) == (0.8, 0.2, 0.08)
    assert settings_of(RECIPES["weak-jitter"])["hue"].default == 0.1


def test_bad_recipe_and_images():
    with pytest.raises(FedsslError, match=r"crop_scale_min 0.5 is above crop_scale_max 0.2"):
        Recipe(crop_scale_min=0.5, crop_scale_max=0.2)


def test_other_channels_than_colours_are_cropped_and_flipped_but_keep_their_values():
    """Channel by channel the same as without jitter: no colour can be changed where there is none."""
    five = torch.cat([PIXELS, PIXELS[:, :2]], dim=1)
    found = augment(five, Recipe(jitter=1, grey=1), generator())
    plain = augment(PIXELS, Recipe(jitter=0, grey=0), generator())
    assert found.shape == (len(PIXELS), 5, *PIXELS.shape[2:])
    assert torch.equal(found[:, :3], plain)
    assert torch.equal(found[:, 3:], plain[:, :2])


def test_more_views_go_on_where_two_end():
    two, three = (make_views(PIXELS, Recipe(), generator(), [ViewGroup(count)]) for count in (2, 3))
    assert [torch.equal(a, b) for a, b in zip(two, three, strict=False)] == [True, True]
    assert not torch.equal(three[2], three[0])


def test_bits_of_recipes_without_turns_and_solarisation_are_those_of_a_table_of_35_numbers():
    """What existing runs drew: one table for each view, whatever else other recipes may want."""
    stream = generator(3)
    make_views(PIXELS[:5], RECIPES["weak-jitter"](), stream)
    expected = generator(3)
    for _ in range(2):
        torch.rand(5, 35, generator=expected)
    assert torch.equal(stream.get_state(), expected.get_state())


def test_groups_of_views_have_their_own_number_size_and_crops():
    """2 global and 3 local crops: the first two are those of a plain pair, local ones see a small part, enlarged."""
    ramp = torch.arange(32, dtype=torch.uint8).expand(64, 3, 32, 32) * 8  # brightness tells the column
    recipe = Recipe(flip=0.0, jitter=0.0, grey=0.0, crop_scale_min=0.5)
    groups = (ViewGroup(2), ViewGroup(3, part=0.5, crop_scale=(0.05, 0.1)))
    views = make_views(ramp, recipe, generator(), groups)
    assert [tuple(view.shape[2:]) for view in views] == [(32, 32)] * 2 + [(16, 16)] * 3
    assert all(torch.equal(a, b) for a, b in zip(views, make_views(ramp, recipe, generator()), strict=False))
    seen = [(view[..., -1] - view[..., 0]).mean() * 255 / 8 for view in views]  # columns between left and right edge
    assert min(seen[:2]) > 18
    assert max(seen[2:]) < 12
    wide = make_views(PIXELS[:, :, :20], Recipe(), generator(), (ViewGroup(1, part=0.5),))
    assert tuple(wide[0].shape[2:]) == (10, 16)


def test_dino_recipe_blurs_and_solarises_by_view():
    """As its code: first view always blurred; second blurred 1 in 10, solarised 1 in 5; further ones blurred 1 in 2."""
    recipe = RECIPES["dino"]()
    rates = [(one.blur, one.solarise) for one in (recipe.of_view(number, ViewGroup()) for number in range(4))]
    assert rates == [(1.0, 0.0), (0.1, 0.2), (0.5, 0.0), (0.5, 0.0)]
    white = torch.full((200, 3, 8, 8), 255, dtype=torch.uint8)
    plain = dataclasses.replace(recipe, jitter=0.0, grey=0.0)
    first, second = (view.mean(dim=(1, 2, 3)) for view in make_views(white, plain, generator()))
    assert first.min() > 0.99
    assert 20 < int((second < 0.01).sum()) < 65  # 40 expected; white becomes black
    assert Recipe(blur=0.3).of_view(0, ViewGroup()) == Recipe(blur=0.3)


def test_grey_recipe_keeps_the_channels_of_an_x_ray_equal_and_never_shows_less_than_half():
    xray = PIXELS[:, :1].expand(-1, 3, -1, -1)
    for view in make_views(xray, RECIPES["grey"](), generator()):
        assert (view - view[:, :1]).abs().max() < 1e-5
    grey = RECIPES["grey"]()
    assert (grey.hue, grey.saturation, grey.grey, grey.blur, grey.crop_scale_min) == (0, 0, 0, 0, 0.5)


def test_gentle_recipe_shows_all_eight_flips_and_turns_equally_often():
    corner = torch.zeros(4000, 1, 2, 2, dtype=torch.uint8)
    corner[:, 0] = torch.tensor([[0, 85], [170, 255]])
    still = dataclasses.replace(
        RECIPES["gentle"](), crop_scale_min=1.0, crop_ratio_min=1.0, crop_ratio_max=1.0, jitter=0.0
    )
    seen = (augment(corner, still, generator()).flatten(1) * 3).round().int()
    kinds, counts = seen.unique(dim=0, return_counts=True)
    assert len(kinds) == 8
    assert abs(counts - 500).max() < 110  # five standard deviations


def test_quarter_turns_of_views_that_are_not_square_are_refused():
    with pytest.raises(FedsslError, match=r"quarter_turn: views of 20 x 32 .* augmentation\.output_size"):
        augment(PIXELS[:, :, :20], RECIPES["gentle"](), generator())
    assert augment(PIXELS[:, :, :20], RECIPES["gentle"](output_size=16), generator()).shape[2:] == (16, 16)
