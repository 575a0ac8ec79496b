import io
import subprocess
import sys
import warnings

import numpy as np
import pytest
from PIL import Image, features

from fedssl.data.own import decoding
from fedssl.data.own.decoding import Decoding, RefusedError, decode_array, decode_file
from tests.helpers.pictures import bomb, encoded, noise, smooth

SIZE = 24
SAME = Decoding(SIZE)


def decode(content, how=SAME):
    return decode_file(io.BytesIO(content), how)


def colour(red, green, blue, size=SIZE):
    return np.full((size, size, 3), (red, green, blue), np.uint8)


def as_chw(array):
    return array.transpose(2, 0, 1) if array.ndim == 3 else np.stack([array] * 3)


# --- every kind -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF", "WEBP"])
def test_lossless_formats_keep_every_pixel(form):
    options = {"lossless": True} if form == "WEBP" else {}
    picture = decode(encoded(noise(), form, **options))
    assert np.array_equal(picture.pixels, as_chw(noise()))
    assert (picture.width, picture.height, picture.kind) == (SIZE, SIZE, f"{form} RGB")
    assert len(picture.sha256) == 64


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_jpeg_of_every_colour_space_comes_near(mode):
    image = Image.fromarray(smooth())
    picture = decode(encoded(image.convert(mode), "JPEG", quality=95))
    expected = as_chw(np.asarray(image.convert("L")) if mode == "L" else smooth())
    assert np.abs(picture.pixels.astype(int) - expected).mean() < 4


def test_grey_becomes_three_equal_channels_or_stays_one():
    grey = noise(channels=1)
    assert np.array_equal(decode(encoded(grey)).pixels, as_chw(grey))
    assert np.array_equal(decode(encoded(grey), Decoding(SIZE, channels=1)).pixels, grey[None])


def test_colour_to_one_channel_by_the_usual_weights():
    pixels = decode(encoded(colour(200, 100, 50)), Decoding(SIZE, channels=1)).pixels
    assert pixels.shape == (1, SIZE, SIZE)
    assert set(pixels.flatten()) == {round(0.299 * 200 + 0.587 * 100 + 0.114 * 50)}


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
@pytest.mark.parametrize(("value", "white", "expected"), [(0, 65535, 0), (32896, 65535, 128), (65535, 65535, 255)])
def test_16_bits_are_scaled_not_cut_off(form, value, white, expected):
    picture = decode(encoded(np.full((SIZE, SIZE), value, np.uint16), form), Decoding(SIZE, white=white))
    assert set(picture.pixels.flatten()) == {expected}
    assert picture.kind.startswith(f"{form} I;16")


def test_12_bits_in_16_need_their_own_white():
    ramp = np.linspace(0, 4095, SIZE * SIZE).astype(np.uint16).reshape(SIZE, SIZE)
    assert decode(encoded(ramp)).pixels.max() == 16
    scaled = decode(encoded(ramp), Decoding(SIZE, white=4095)).pixels
    assert (scaled.min(), scaled.max()) == (0, 255)
    assert len(np.unique(scaled)) > 200


def test_big_endian_16_bit_tiff():
    image = Image.frombytes("I;16B", (SIZE, SIZE), np.full((SIZE, SIZE), 257 * 99, ">u2").tobytes())
    assert set(decode(encoded(image, "TIFF")).pixels.flatten()) == {99}


def test_32_bit_integers_within_16_bits_are_taken_and_others_refused():
    assert set(decode(encoded(np.full((4, 4), 65535, np.int32), "TIFF")).pixels.flatten()) == {255}
    for value in (65536, -1):
        with pytest.raises(RefusedError, match="only 8 and 16 bits, without sign"):
            decode(encoded(np.full((4, 4), value, np.int32), "TIFF"))


@pytest.mark.parametrize("form", ["PNG", "WEBP", "TIFF"])
def test_what_is_transparent_becomes_white(form):
    pixels = np.dstack([colour(10, 20, 30), np.full((SIZE, SIZE), 255, np.uint8)])
    pixels[:, : SIZE // 2, 3] = 0
    options = {"lossless": True, "exact": True} if form == "WEBP" else {}
    found = decode(encoded(pixels, form, **options)).pixels
    assert set(found[:, :, : SIZE // 2].flatten()) == {255}
    assert found[:, 0, -1].tolist() == [10, 20, 30]


def test_grey_with_alpha():
    pixels = np.dstack([np.full((SIZE, SIZE), 40, np.uint8), np.full((SIZE, SIZE), 255, np.uint8)])
    assert set(decode(encoded(Image.fromarray(pixels, "LA"))).pixels.flatten()) == {40}


def test_palette_with_and_without_transparency():
    image = Image.fromarray(colour(200, 30, 60)).quantize(4)
    assert decode(encoded(image)).pixels[:, 0, 0].tolist() == [200, 30, 60]
    clear = encoded(image, transparency=image.getpixel((0, 0)))
    assert decode(clear).pixels[:, 0, 0].tolist() == [255, 255, 255]


def test_black_and_white():
    picture = decode(encoded(Image.new("1", (SIZE, SIZE), 1)))
    assert set(picture.pixels.flatten()) == {255}


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(orientation):
    """The stored pixels are turned so that, shown as EXIF says, red is at the top left."""
    upright = np.zeros((SIZE, SIZE, 3), np.uint8)
    upright[: SIZE // 2, : SIZE // 2, 0] = 255
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # orientation -> PIL's transposition that undoes it
    image = Image.fromarray(upright)
    if orientation > 1:
        image = image.transpose(Image.Transpose(undo[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = decode(encoded(image, "JPEG", quality=98, exif=exif)).pixels
    assert found[0, 2, 2] > 200
    assert max(found[0, 2, -3], found[0, -3, 2], found[0, -3, -3]) < 60


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_damaged_exif_leaves_the_image_as_it_is_stored():
    content = encoded(smooth(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert decode(content).pixels.shape == (3, SIZE, SIZE)


def test_an_exif_reader_that_fails_costs_no_image(monkeypatch):
    def fail(image):
        raise SyntaxError("not a TIFF file")

    monkeypatch.setattr(decoding.ImageOps, "exif_transpose", fail)
    assert np.array_equal(decode(encoded(noise())).pixels, as_chw(noise()))


# --- sizes ------------------------------------------------------------------------------------------------------------


def test_crop_takes_the_middle_square_and_stretch_everything():
    wide = np.zeros((20, 60, 3), np.uint8)
    wide[:, 20:40] = 255
    assert decode(encoded(wide), Decoding(20)).pixels.min() == 255
    stretched = decode(encoded(wide), Decoding(20, fit="stretch")).pixels
    assert (stretched[0, 10, 1], stretched[0, 10, 10], stretched[0, 10, 18]) == (0, 255, 0)


@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_large_images_are_reduced_with_antialiasing(form):
    board = (np.indices((512, 512)).sum(axis=0) % 2 * 255).astype(np.uint8)
    found = decode(
        encoded(board, form, **({"quality": 100} if form == "JPEG" else {})), Decoding(32, channels=1)
    ).pixels
    assert np.abs(found.astype(int) - 127).max() <= 3, "every second pixel would be black or white"


@pytest.mark.parametrize("shape", [(1, 1), (1, 3000), (3000, 1), (2, 3)])
@pytest.mark.parametrize("fit", ["crop", "stretch"])
def test_smallest_and_longest_images(shape, fit):
    found = decode(encoded(np.full((*shape, 3), 77, np.uint8)), Decoding(16, fit=fit)).pixels
    assert found.shape == (3, 16, 16)
    assert set(found.flatten()) == {77}


def test_animations_give_their_first_frame():
    frames = [Image.fromarray(colour(value, 0, 0)) for value in (50, 200)]
    content = encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    assert decode(content).pixels[0, 0, 0] == 50


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "BMP", "TIFF"])
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_truncated_files(form, share):
    content = encoded(noise(64), form)
    with pytest.raises(RefusedError):
        decode(content[: int(share * len(content))])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty file"),
        (b"hello, this is no image at all", "not an image"),
        (b"\xff\xd8\xff\xe0 a JPEG that is none", "not an image|damaged"),
        (b"\x89PNG\r\n\x1a\n", "not an image|damaged"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "not an image"),
        (b"GIF89a\x01\x00\x01\x00\x00\x00\x00;", "not an image|damaged"),
    ],
)
def test_what_is_no_image(content, reason):
    with pytest.raises(RefusedError, match=reason) as caught:
        decode(content)
    assert "0x" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_floating_point_pixels_have_no_known_range():
    with pytest.raises(RefusedError, match="floating-point"):
        decode(encoded(np.ones((4, 4), np.float32), "TIFF"))


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "BMP", "TIFF"])
def test_flipped_bytes_are_refused_or_decoded_but_never_an_error(form, seed):
    stream = np.random.default_rng(seed)
    content = bytearray(encoded(noise(16), form))
    for place in stream.integers(0, len(content), 4):
        content[place] = stream.integers(0, 256)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            assert decode(bytes(content)).pixels.shape == (3, SIZE, SIZE)
        except RefusedError as error:
            assert str(error)


def test_a_bomb_is_refused_by_its_header_with_little_memory(tmp_path):
    path = tmp_path / "bomb.png"
    path.write_bytes(bomb())
    assert path.stat().st_size < 2_000_000
    probe = (
        "import resource, sys\n"
        "from fedssl.data.own.decoding import *\n"
        "from pathlib import Path\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n"
        "    decode_file(Path(sys.argv[1]).open('rb'), Decoding(64))\n"
        "except RefusedError as error:\n"
        "    print(error)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    ran = subprocess.run([sys.executable, "-c", probe, str(path)], capture_output=True, text=True, check=True)
    reason, kilobytes = ran.stdout.splitlines()
    assert "decompression bomb" in reason
    assert int(kilobytes) < 50_000


def test_a_size_that_only_makes_pil_warn_is_refused_too(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    content = encoded(noise(12))  # 144 pixels
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with pytest.raises(RefusedError, match="decompression bomb"):
            decode(content)


def test_a_disk_that_fails_is_no_fault_of_the_image():
    class Failing(io.BytesIO):
        def read(self, *size):
            if self.tell() > 100:
                raise OSError(5, "Input/output error")
            return super().read(*size)

    with pytest.raises(OSError, match="Input/output error"):
        decode_file(Failing(encoded(noise(64), "PNG")), SAME)


def test_large_images_are_decoded_one_at_a_time(monkeypatch):
    monkeypatch.setattr(decoding, "LARGE", 500)
    held = []
    real = decoding._to_pixels
    monkeypatch.setattr(decoding, "_to_pixels", lambda *given: held.append(decoding.ONE_LARGE.locked()) or real(*given))
    for size in (16, 24):
        decode(encoded(noise(size)))
    assert held == [False, True]
    assert not decoding.ONE_LARGE.locked()


# --- arrays -----------------------------------------------------------------------------------------------------------


def test_rows_of_arrays_decode_as_files_do():
    for array in (noise(30), noise(30, channels=1), noise(30, channels=4)):
        assert np.array_equal(decode_array(array, SAME).pixels, decode(encoded(array)).pixels)
    assert np.array_equal(decode_array(noise(30)[..., :1], SAME).pixels, decode_array(noise(30)[..., 0], SAME).pixels)


def test_16_bit_rows():
    grey = np.full((8, 8), 257 * 7, np.uint16)
    assert set(decode_array(grey, SAME).pixels.flatten()) == {7}
    assert set(decode_array(np.dstack([grey] * 3), SAME).pixels.flatten()) == {7}


def test_digest_tells_images_apart():
    assert decode(encoded(noise(seed=1))).sha256 != decode(encoded(noise(seed=2))).sha256
    assert decode_array(noise(seed=1), SAME).sha256 != decode_array(noise(seed=2), SAME).sha256


# --- GIF, JPEG 2000, and arrays of other channels than colours --------------------------------------------------------


def test_the_first_frame_of_a_gif():
    frames = [Image.fromarray(noise(seed=seed, channels=1)) for seed in (0, 1)]
    picture = decode(encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]), Decoding(SIZE, channels=1))
    assert np.array_equal(picture.pixels[0], np.asarray(frames[0]))
    assert picture.kind.startswith("GIF")
    assert picture.kind.endswith(", first of several frames")


@pytest.mark.skipif(not features.check("jpg_2000"), reason="this Pillow has no JPEG 2000")
def test_jpeg_2000_without_loss():
    array = noise()
    picture = decode(encoded(array, "JPEG2000", irreversible=False))
    assert np.array_equal(picture.pixels, array.transpose(2, 0, 1))
    assert picture.kind == "JPEG2000 RGB"


@pytest.mark.parametrize("channels", [2, 4, 5])
def test_channels_of_an_array_are_resized_each_by_itself(channels):
    array = noise(30, channels=channels)
    picture = decode_array(array, Decoding(16, channels=channels))
    for number in range(channels):
        alone = decode_array(array[..., number], Decoding(16, channels=1))
        assert np.array_equal(picture.pixels[number], alone.pixels[0])
    deep = decode_array(array.astype(np.uint16) * 257, Decoding(16, channels=channels))
    assert np.array_equal(deep.pixels, picture.pixels)


def test_other_channels_than_the_settings_say_are_refused_with_the_remedy():
    with pytest.raises(RefusedError, match=r"^5 channels, not 3: set data\.channels = 5$"):
        decode_array(noise(channels=5), Decoding(SIZE))
    with pytest.raises(RefusedError, match=r"^files have 1 or 3 channels: for 5 \(data\.channels\) give an array$"):
        decode(encoded(noise()), Decoding(SIZE, channels=5))
