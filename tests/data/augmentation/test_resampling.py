import kornia
import pytest
import torch
import torch.nn.functional as F

from fedssl.data.augmentation.resampling import blur_matrix, crop_matrix, resample

IMAGES = torch.rand(3, 2, 20, 26, generator=torch.Generator().manual_seed(0))
TOP, LEFT = torch.tensor([0.0, 3, 7]), torch.tensor([0.0, 5, 25])
HEIGHT, WIDTH = torch.tensor([20.0, 9, 13]), torch.tensor([26.0, 14, 1])


@pytest.mark.parametrize("output", [(20, 26), (40, 31), (7, 5), (1, 1)])
def test_crop_as_interpolate_of_the_slice(output):
    """Also when it shrinks: then as antialiased interpolation."""
    rows = crop_matrix(TOP, HEIGHT, 20, output[0])
    columns = crop_matrix(LEFT, WIDTH, 26, output[1])
    got = resample(IMAGES, rows, columns)
    boxes = zip(*(values.int().tolist() for values in (TOP, LEFT, HEIGHT, WIDTH)), strict=True)
    for image, result, (top, left, height, width) in zip(IMAGES, got, boxes, strict=True):
        crop = image[None, :, top : top + height, left : left + width]
        expected = F.interpolate(crop, output, mode="bilinear", align_corners=False, antialias=True)[0]
        torch.testing.assert_close(result, expected, atol=1e-5, rtol=0)
        if height <= output[0] and width <= output[1]:  # no antialiasing where nothing shrinks
            expected = F.interpolate(crop, output, mode="bilinear", align_corners=False)[0]
            torch.testing.assert_close(result, expected, atol=1e-5, rtol=0)


def test_whole_image_is_left_as_it_is():
    whole = crop_matrix(torch.zeros(1), torch.tensor([6.0]), 6, 6)
    assert torch.equal(whole[0], torch.eye(6))


@pytest.mark.parametrize("radius", [1, 4])
def test_blur_as_kornia(radius):
    sigma = torch.tensor([0.1, 0.9, 2.0])
    got = resample(IMAGES, blur_matrix(sigma, radius, 20), blur_matrix(sigma, radius, 26))
    expected = kornia.filters.gaussian_blur2d(IMAGES, 2 * radius + 1, sigma.view(-1, 1).expand(-1, 2))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)
