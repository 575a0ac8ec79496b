"""Made-up images that need no download: textured shapes whose class is the shape and the texture, never the colour."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fedssl.core.errors import FedsslError
from fedssl.core.seeding import numpy_stream
from fedssl.data.dataset import Images

FloatArray = np.ndarray[Any, np.dtype[np.float32]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]

CHUNK = 256  # images painted at once: bounds the memory of the temporaries

# Inside or outside, for points (u, v) in units of the shape's radius.
SHAPES: dict[str, Callable[[FloatArray, FloatArray], BoolArray]] = {
    "disc": lambda u, v: u**2 + v**2 < 1,
    "square": lambda u, v: np.maximum(abs(u), abs(v)) < 0.85,
    "triangle": lambda u, v: (v < 0.7) & (1.75 * abs(u) - v < 0.95),
    "cross": lambda u, v: (np.minimum(abs(u), abs(v)) < 0.32) & (np.maximum(abs(u), abs(v)) < 1),
    "ring": lambda u, v: abs(u**2 + v**2 - 0.68) < 0.32,
}
# First or second colour, for points (a, b) in units of half a period, along and across the texture's direction.
TEXTURES: dict[str, Callable[[FloatArray, FloatArray], BoolArray]] = {
    "striped": lambda a, _: np.floor(a) % 2 < 1,
    "checked": lambda a, b: (np.floor(a) + np.floor(b)) % 2 < 1,
    "dotted": lambda a, b: (a % 2 - 1) ** 2 + (b % 2 - 1) ** 2 < 0.4,
    "plain": lambda a, _: np.ones(a.shape, bool),
}
CLASS_NAMES = tuple(f"{texture} {shape}" for texture in TEXTURES for shape in SHAPES)


def synthetic_images(count: int, classes: int, image_size: int, seed: int, part: str) -> Images:
    """`count` images, classes as even as they come; `part` ("train", "test") names the random stream."""
    if classes > len(CLASS_NAMES):
        raise FedsslError(f"dataset.classes is {classes} but synthetic has only {len(CLASS_NAMES)} classes: lower it")
    stream = numpy_stream(seed, "synthetic", part)
    labels = stream.permutation(np.arange(count) % classes)
    pixels = np.empty((count, 3, image_size, image_size), np.uint8)
    for start in range(0, count, CHUNK):
        pixels[start : start + CHUNK] = _paint(labels[start : start + CHUNK], image_size, stream)
    return Images(torch.from_numpy(pixels), torch.from_numpy(labels), class_names=CLASS_NAMES[:classes])


def _paint(labels: np.ndarray[Any, np.dtype[np.int64]], size: int, stream: np.random.Generator) -> FloatArray:
    """Pixels in [0, 255], N x 3 x size x size: a noisy background and, on it, one shape filled with its texture."""
    inside = _draw_shapes(labels % len(SHAPES), size, stream)
    first = _draw_textures(labels // len(SHAPES), size, stream)

    def colour_near(distance: float) -> FloatArray:
        """A colour whose every channel is about `distance` away from that of `base`."""
        shift = distance * stream.choice([-1, 1], base.shape) + stream.uniform(-0.1, 0.1, base.shape)
        return ((base + shift) % 1).astype(np.float32)

    base = stream.uniform(size=(len(labels), 3, 1, 1)).astype(np.float32)
    filling = np.where(first, base, colour_near(0.5))
    cells = -(-size // 4)
    blotches = stream.uniform(-0.12, 0.12, (len(labels), 3, cells, cells)).astype(np.float32)
    background = colour_near(0.25) + blotches.repeat(4, axis=2).repeat(4, axis=3)[:, :, :size, :size]
    grain = stream.standard_normal((len(labels), 3, size, size), dtype=np.float32) * 0.04
    painted: FloatArray = np.where(inside, filling, background) + grain
    return painted.clip(0, 1) * 255


def _draw_shapes(kinds: np.ndarray[Any, np.dtype[np.int64]], size: int, stream: np.random.Generator) -> BoolArray:
    """Where each image's shape is, N x 1 x size x size: random place, radius and tilt."""
    radius = stream.uniform(0.26, 0.42, len(kinds))
    centre = stream.uniform(radius, 1 - radius, (2, len(kinds)))  # inside the image but for the corners
    tilt = stream.uniform(-0.35, 0.35, len(kinds))
    return _select(SHAPES, kinds, *_coordinates(size, centre, tilt, radius))


def _draw_textures(kinds: np.ndarray[Any, np.dtype[np.int64]], size: int, stream: np.random.Generator) -> BoolArray:
    """Where each image's texture has its first colour, N x 1 x size x size: random direction, period and phase."""
    half_period = stream.uniform(0.07, 0.11, len(kinds))
    phase = stream.uniform(-1, 0, (2, len(kinds)))
    direction = stream.uniform(0, np.pi, len(kinds))
    return _select(TEXTURES, kinds, *_coordinates(size, phase, direction, half_period))


def _coordinates(size: int, origin: Any, angle: Any, unit: Any) -> tuple[FloatArray, FloatArray]:
    """Coordinates of every pixel, N x size x size, about `origin`, turned by `angle`, in units of `unit`."""
    line = (np.arange(size, dtype=np.float32) + 0.5) / size
    origin, angle, unit = (np.asarray(value, np.float32)[..., None, None] for value in (origin, angle, unit))
    x, y = (line[None, None, :] - origin[0]) / unit, (line[None, :, None] - origin[1]) / unit
    return np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x


def _select(
    functions: dict[str, Callable[[FloatArray, FloatArray], BoolArray]],
    kinds: np.ndarray[Any, np.dtype[np.int64]],
    first: FloatArray,
    second: FloatArray,
) -> BoolArray:
    """Each image by the function of its own kind."""
    result = np.empty(first.shape, bool)
    for kind, function in enumerate(functions.values()):
        chosen = kinds == kind
        result[chosen] = function(first[chosen], second[chosen])
    return result[:, None]
