"""Image files for tests: good ones of every kind, and bad ones."""

import io
import struct
import zlib

import numpy as np
from PIL import Image


def noise(size=24, seed=0, channels=3):
    """uint8 height x width x channels (without the last axis for one channel)."""
    shape = (size, size) if channels == 1 else (size, size, channels)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def smooth(size=24, seed=0):
    """A picture that survives JPEG: a few soft patches of colour."""
    patches = Image.fromarray(noise(3, seed))
    return np.asarray(patches.resize((size, size), Image.Resampling.BICUBIC))


def encoded(array, form="PNG", **options):
    file = io.BytesIO()
    image = array if isinstance(array, Image.Image) else Image.fromarray(array)
    image.save(file, form, **options)
    return file.getvalue()


def write(path, array, form=None, **options):
    """An image file, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ending = {".jpg": "JPEG", ".tif": "TIFF"}.get(path.suffix, path.suffix[1:].upper())
    path.write_bytes(encoded(array, form or ending, **options))
    return path


def write_folder(root, clients=("",), classes=("",), each=6, size=24):
    """each images for every client and class, at client/class/number.png; returns them in the order of their paths."""
    found, seed = {}, 0
    for client in clients:
        for name in classes:
            for number in range(each):
                path = root / client / name / f"{number:03}.png"
                found[str(path)] = noise(size, seed)
                write(path, found[str(path)])
                seed += 1
    return np.stack([found[path] for path in sorted(found)])


def bomb(side=50_000):
    """A valid PNG of side x side pixels, one bit each, in some hundred kilobytes."""
    packer = zlib.compressobj(1)
    row = bytes(1 + -(-side // 8)) * 1000
    packed = b"".join([*(packer.compress(row) for _ in range(side // 1000)), packer.flush()])
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    chunks = b"".join(_chunk(kind, content) for kind, content in ((b"IHDR", header), (b"IDAT", packed), (b"IEND", b"")))
    return b"\x89PNG\r\n\x1a\n" + chunks


def _chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def tree(root):
    """Every file below a folder with content, mode and time of change: to see that none was touched."""
    return {
        str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mode, path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
