"""One image of a user, of whatever kind and size, to uint8 pixels of one shape; what is not whole is refused."""

import hashlib
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass
from functools import cache
from io import BufferedReader, BytesIO
from threading import Lock
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError, features

from fedssl.core.errors import first_line

FILE_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF", *(("JPEG2000",) if features.check("jpg_2000") else ()))
ENDINGS = (
    *(".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".bmp", ".dib", ".tif", ".tiff", ".gif", ".jp2", ".j2k"),
    *(".dcm", ".dicom"),
)
OTHERS = (".heic", ".heif", ".avif", ".svg", ".ppm", ".pgm", ".ico")  # images all the same
MOST_PIXELS = 89_478_485  # where PIL begins to warn: a file of kilobytes may unpack to gigabytes
LARGE = 16_000_000  # pixels; a decoder may hold twelve bytes of each, so that several threads would need gigabytes
ONE_LARGE = Lock()
UNREADABLE = "cannot be read"
WITH_ALPHA = ("LA", "La", "PA", "RGBA", "RGBa")
LARGEST_GREY = 65_535
Resampling = Literal["bilinear", "bicubic"]
RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
SHOWN = (1, 3)  # channels that are grey or colours; others are what an array says
UInt8Array = np.ndarray[Any, np.dtype[np.uint8]]
AnyArray = np.ndarray[Any, np.dtype[Any]]
ImageFile = BufferedReader | BytesIO


class RefusedError(Exception):
    """Why an image is not used, in a few words."""


class UnreadableError(RefusedError):
    """An image that cannot be read now, and may be another time."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"{UNREADABLE}: {getattr(error, 'strerror', None) or error}")


@dataclass(frozen=True)
class Decoding:
    """What every image is brought to; two sets with equal files and equal settings have equal pixels."""

    image_size: int
    channels: int = 3
    fit: Literal["crop", "stretch"] = "crop"  # the middle square, or the whole image out of proportion
    white: int = LARGEST_GREY  # the value of a 16-bit image that is white; 12-bit sensors: 4095
    _: KW_ONLY
    resampling: Resampling = "bilinear"


@dataclass(frozen=True)
class Picture:
    """A decoded image and what it was before."""

    pixels: UInt8Array  # channels x size x size
    _: KW_ONLY
    sha256: str  # of the file, or of an array's row
    width: int
    height: int
    kind: str  # such as "JPEG RGB"


def decode_file(file: ImageFile, decoding: Decoding) -> Picture:
    """Reads the whole image; `RefusedError` says why it cannot be used. Only the first frame of an animation counts."""
    if decoding.channels not in SHOWN:
        raise RefusedError(f"files have 1 or 3 channels: for {decoding.channels} (data.channels) give an array")
    try:
        image = Image.open(file, formats=FILE_FORMATS)
        frames = ", first of several frames" if getattr(image, "is_animated", False) else ""
        width, height, kind = image.width, image.height, f"{image.format} {image.mode}{frames}"
        check_size(width, height)
        # JPEG alone: a photo much larger than needed is decoded at a half, a quarter or an eighth, in less time.
        image.draft(None, (2 * decoding.image_size, 2 * decoding.image_size))
        with ONE_LARGE if image.width * image.height > LARGE else nullcontext():
            image.load()  # verify() would let a truncated JPEG pass
            pixels = decode_image(image, decoding)
    except UnidentifiedImageError:
        return _decode_dicom(file, decoding)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise RefusedError(f"more than {MOST_PIXELS:,} pixels: a decompression bomb, or reduce it first") from None
    except (RefusedError, MemoryError):
        raise
    except Exception as error:  # what PIL raises on damaged files is no closed list
        if isinstance(error, OSError) and error.errno is not None:
            raise  # not PIL's: the disk's, and no fault of the image
        raise RefusedError(f"damaged: {first_line(error)}") from None
    return _picture(pixels, file, width, height, kind)


def _decode_dicom(file: ImageFile, decoding: Decoding) -> Picture:
    """What PIL does not know: DICOM, or no image at all."""
    from fedssl.data.own.dicom import is_dicom, open_dicom

    if not is_dicom(file):
        file.seek(0)
        raise RefusedError(f"not an image ({', '.join(FILE_FORMATS)}, DICOM)" if file.read(1) else "empty file")
    image, kind = open_dicom(file)
    return _picture(_to_pixels(image, decoding), file, image.width, image.height, kind)


def _picture(pixels: UInt8Array, file: ImageFile, width: int, height: int, kind: str) -> Picture:
    file.seek(0)
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Picture(pixels, sha256=digest, width=width, height=height, kind=kind)


def decode_image(image: Image.Image, decoding: Decoding) -> UInt8Array:
    """An image that was opened already, turned as the camera says."""
    return _to_pixels(_upright(image), decoding)


def decode_array(row: AnyArray, decoding: Decoding) -> Picture:
    """One image of an array: uint8 or uint16, height x width or height x width x 1, 3 or 4 channels.

    Of other channels each is resized by itself, if there are as many as the settings say.
    """
    height, width = row.shape[:2]
    check_size(width, height)
    flat = np.ascontiguousarray(row[..., 0] if row.ndim == 3 and row.shape[2] == 1 else row)
    if flat.ndim == 3 and flat.dtype != np.uint8:
        flat = _to_8_bits(flat, decoding.white)
    if decoding.channels not in SHOWN or (flat.ndim == 3 and flat.shape[2] not in (3, 4)):
        return _decode_channels(flat if flat.ndim == 3 else flat[..., None], decoding)
    image = Image.fromarray(flat)
    digest = hashlib.sha256(flat.data).hexdigest()
    return Picture(_to_pixels(image, decoding), sha256=digest, width=width, height=height, kind=f"array {image.mode}")


def _decode_channels(row: AnyArray, decoding: Decoding) -> Picture:
    height, width, channels = row.shape
    if channels != decoding.channels:
        raise RefusedError(f"{channels} channels, not {decoding.channels}: set data.channels = {channels}")
    eight = row if row.dtype == np.uint8 else _to_8_bits(row, decoding.white)
    planes = [np.asarray(_fitted(Image.fromarray(eight[..., c].copy()), decoding)) for c in range(channels)]
    digest = hashlib.sha256(np.ascontiguousarray(row).data).hexdigest()
    return Picture(np.stack(planes), sha256=digest, width=width, height=height, kind=f"array of {channels} channels")


def not_read(kind: str) -> str:
    return f"{kind} is not read: save it as one of {', '.join(FILE_FORMATS)}"


def check_size(width: int, height: int) -> None:
    if width * height > MOST_PIXELS:
        raise RefusedError(
            f"{width} x {height} pixels are more than {MOST_PIXELS:,}: a decompression bomb, or reduce it first"
        )


def _upright(image: Image.Image) -> Image.Image:
    """Turned as the camera says; an image whose EXIF data are damaged stays as it is stored."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # the pixels are whole, and EXIF readers raise anything
        return image


def _to_pixels(image: Image.Image, decoding: Decoding) -> UInt8Array:
    if image.mode == "F":
        raise RefusedError("floating-point pixels, whose range nobody knows: store them in 8 or 16 bits")
    if image.mode.startswith("I"):
        image = Image.fromarray(_to_8_bits(np.asarray(image), decoding.white))
    if image.mode in WITH_ALPHA or "transparency" in image.info:
        opaque = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", opaque.size, "white"), opaque)
    image = _fitted(image.convert("RGB" if decoding.channels == 3 else "L"), decoding)
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _to_8_bits(values: AnyArray, white: int) -> UInt8Array:
    """0 stays black and `white` becomes 255; PIL's own conversion would cut everything above 255 off."""
    if values.dtype.itemsize > 2:  # PIL's mode I: 32 bits, mostly for what 16 would hold
        low, high = int(values.min()), int(values.max())
        if low < 0 or high > LARGEST_GREY:
            raise RefusedError(f"pixel values from {low} to {high}: only 8 and 16 bits, without sign, are understood")
    return _grey_table(white)[values]


@cache
def _grey_table(white: int) -> UInt8Array:
    values = np.arange(LARGEST_GREY + 1, dtype=np.int64)
    return np.minimum((values * 255 + white // 2) // white, 255).astype(np.uint8)


def _fitted(image: Image.Image, decoding: Decoding) -> Image.Image:
    """Resized with antialiasing; an image that has the right size keeps its pixels bit for bit."""
    size, (width, height) = decoding.image_size, image.size
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    box = (left, top, left + side, top + side) if decoding.fit == "crop" else (0, 0, width, height)
    return image.resize((size, size), RESAMPLING[decoding.resampling], box, reducing_gap=2.0)
