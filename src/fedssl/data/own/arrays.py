"""Images in a NumPy file: .npy with images alone, .npz with labels and clients beside them."""

import math
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedssl.core.errors import FedsslError
from fedssl.data.folders import data_folder, make_folder
from fedssl.data.own.folder import Files
from fedssl.data.own.found import Found, Read, Sample, by_number, printable

ENDINGS = (".npy", ".npz")
DEPTHS = (np.uint8, np.uint16)
MOST_CHANNELS = 32  # where neither axis is 1, 3 or 4, the shorter one holds them
USUAL = {"label": ("label", "labels", "y"), "client": ("client", "clients")}


@dataclass(frozen=True)
class Rows:
    """A source of an array's rows; read by memory mapping, so that the array may be larger than the memory."""

    path: Path
    member: str  # of a .npz; "": a .npy
    layout: str  # of the axes: NHW, NHWC or NCHW

    def stamps(self, numbers: list[int]) -> Iterator[str]:
        yield from Files([str(self.path)]).stamps([0])
        yield f"{self.member} {self.layout}"
        yield from map(str, numbers)

    @contextmanager
    def opened(self) -> Iterator[Read]:
        if not self.member:
            yield self._reader(self.path)
            return
        make_folder(data_folder())
        with tempfile.TemporaryDirectory(dir=data_folder(), prefix="unpacked-") as folder:
            yield self._reader(self._unpacked(Path(folder) / "images.npy"))

    def _unpacked(self, target: Path) -> Path:
        """Inside a .npz an array cannot be mapped, and it may be larger than the memory."""
        try:
            with (
                zipfile.ZipFile(self.path) as archive,
                archive.open(self.member) as packed,
                target.open("wb") as file,
            ):
                shutil.copyfileobj(packed, file, 1 << 20)
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise FedsslError(f"{printable(self.path)}: damaged ({error})") from None
        return target

    def _reader(self, path: Path) -> Read:
        images = np.load(path, mmap_mode="r", allow_pickle=False)
        return lambda number: images[number].transpose(1, 2, 0) if self.layout == "NCHW" else images[number]


def find_in_array(place: str | Path, columns: Mapping[str, str], labels: bool = True) -> Found:
    """The images of a .npy or .npz file: uint8 or uint16, N x H x W, N x H x W x C or N x C x H x W.

    `columns` names the arrays `image`, `label` and `client` of a .npz; one that is "" is found by its type or name.
    """
    path = Path(place)
    try:
        if path.suffix.lower() == ".npy":
            with path.open("rb") as file:
                return _samples(path, "", *_header(file, path.stat().st_size), {})
        headers = {}
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                with archive.open(member) as packed:
                    headers[member.filename.removesuffix(".npy")] = _header(packed, member.file_size)
        name = _image_array(path, headers, columns["image"])
        facts = {
            kind: _column(path, headers, kind, columns[kind], headers[name][0][0])
            for kind in ("label", "client")
            if labels or kind != "label"
        }
        return _samples(path, f"{name}.npy", *headers[name], facts)
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise FedsslError(f"{printable(path)}: not readable as a NumPy file ({error})") from None


def _header(file: IO[bytes], size: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of an array in a file of this size; no value is read, and pickled objects never are."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if math.prod(shape) * dtype.itemsize > size and not dtype.hasobject:
        raise ValueError(f"an array of shape {shape} is cut off")
    return shape, dtype


def _image_array(path: Path, headers: Mapping[str, Any], wanted: str) -> str:
    if wanted in headers:
        return wanted
    shaped = [name for name, (shape, _) in headers.items() if len(shape) in (3, 4)]
    fitting = [name for name in shaped if headers[name][1] in DEPTHS] or shaped  # of another type: `_layout` says so
    if wanted or len(fitting) != 1:
        problem = f"there is no array {wanted!r}" if wanted else f"{len(fitting)} arrays may be images"
        raise FedsslError(
            f"{printable(path)}: {problem} among {', '.join(headers)}: name it with data.image_column "
            "(uint8 or uint16, 3 or 4 axes)"
        )
    return fitting[0]


def _column(path: Path, headers: Mapping[str, Any], kind: str, wanted: str, count: int) -> list[str] | None:
    """The label or client of each image, as texts; None when there is no such array."""
    names = [wanted] if wanted else [name for name in USUAL[kind] if name in headers]
    if not names:
        return None
    if names[0] not in headers:
        raise FedsslError(f"{printable(path)}: there is no array {wanted!r} (data.{kind}_column)")
    shape, dtype = headers[names[0]]
    if shape not in ((count,), (count, 1)) or dtype.kind not in "iuSUb":
        raise FedsslError(
            f"{printable(path)}: {names[0]!r} is {dtype} of shape {shape}: {kind}s are whole numbers or texts, one for "
            f"each of {count:,} images"
        )
    with np.load(path, allow_pickle=False) as arrays:
        values = arrays[names[0]].reshape(-1)
    return [
        printable(value.decode("utf-8", "surrogateescape") if dtype.kind == "S" else str(value)) for value in values
    ]


def _samples(
    path: Path, member: str, shape: tuple[int, ...], dtype: np.dtype[Any], facts: Mapping[str, list[str] | None]
) -> Found:
    layout = _layout(path, shape, dtype)
    unknown: list[str | None] = [None] * shape[0]
    labels, clients = facts.get("label") or unknown, facts.get("client") or unknown
    samples = [
        Sample(f"image {number}", client, label)
        for number, (client, label) in enumerate(zip(clients, labels, strict=True))
    ]
    named = sorted({client for client in clients if client is not None}, key=by_number)
    return Found(printable(path), samples, Rows(path, member, layout), clients=tuple(named))


def _layout(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
    if dtype not in DEPTHS:
        scale = " (first times 255, if they go from 0 to 1)" if dtype.kind == "f" else ""
        raise FedsslError(
            f"{printable(path)}: images of type {dtype}: only uint8 (0 to 255) and uint16 are understood: save "
            f"images.round().astype('uint8'){scale}"
        )
    if 0 in shape[1:]:
        raise FedsslError(f"{printable(path)}: images of shape {shape}: they have no pixels")
    if len(shape) == 3:
        return "NHW"
    if len(shape) == 4 and shape[3] in (1, 3, 4):
        return "NHWC"
    if len(shape) == 4 and shape[1] in (1, 3, 4):
        return "NCHW"
    if len(shape) == 4 and min(shape[1], shape[3]) <= MOST_CHANNELS:
        return "NHWC" if shape[3] < shape[1] else "NCHW"
    raise FedsslError(
        f"{printable(path)}: images of shape {shape}: only N x H x W, N x H x W x C and N x C x H x W with up to "
        f"{MOST_CHANNELS} channels are understood"
    )
