"""Decoded images on disk: made once, memory mapped ever after, named by the content of the files and by the settings.

images/KEY/pixels.bin     uint8, N x C x H x W, nothing else
images/KEY/index.json     shape, checksum, what became of every file
images/KEY/checked        size and times of pixels.bin when its checksum was last right
images/known/STAMPS       the KEY of files with these sizes and times: no file need be read to find it
"""

import hashlib
import json
import mmap
import os
import re
import shutil
import stat
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedssl.core.checksums import read_signed, signed_json
from fedssl.core.errors import DamagedError, FedsslError
from fedssl.core.files import write_atomically
from fedssl.core.progress import Progress
from fedssl.data.dataset import Images, fingerprint
from fedssl.data.folders import data_folder, make_folder
from fedssl.data.own.decoding import (
    UNREADABLE,
    Decoding,
    Picture,
    RefusedError,
    UnreadableError,
    decode_array,
    decode_file,
)
from fedssl.data.own.found import Read, Source

FORMAT = 2  # raise it when the same files and settings come to give other pixels
MOST_THREADS = 8  # each holds up to 200 MB of a large photo
AHEAD = 16  # images that each thread may be ahead of the writer: bounds the memory when the disk is slow
Refuse = Callable[[int, str], None]  # called with the number of the image and the reason
ABANDONED = 86_400  # seconds without a write after which unfinished work was left behind by a kill


@dataclass(frozen=True)
class DecodedImages:
    """A set of images in the cache; `outcomes` has a row for every file, in the order they were asked for."""

    folder: Path
    shape: tuple[int, int, int, int]
    fingerprint: str
    outcomes: list["Outcome"]

    @property
    def pixels_path(self) -> Path:
        return self.folder / "pixels.bin"

    @property
    def num_bytes(self) -> int:
        return int(np.prod(self.shape))

    def images(self, labels: Tensor | None = None, class_names: tuple[str, ...] = ()) -> Images:
        """Mapped, read only: nothing is in memory but what the system keeps of the file, and gives up at need."""
        if not self.shape[0]:
            nothing = torch.empty(self.shape, dtype=torch.uint8)
            return Images(nothing, labels, class_names=class_names, known_fingerprint=self.fingerprint)
        with self.pixels_path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given buffer is not writable")  # nobody writes to images
            pixels = torch.frombuffer(mapped, dtype=torch.uint8).view(self.shape)
        forget = partial(mapped.madvise, mmap.MADV_DONTNEED) if hasattr(mmap, "MADV_DONTNEED") else None
        return Images(pixels, labels, class_names=class_names, known_fingerprint=self.fingerprint, release=forget)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one file: its size and kind and a checksum of its content, or why it is not used."""

    refused: str = ""
    sha256: str = ""
    width: int = 0
    height: int = 0
    kind: str = ""


def cache_folder() -> Path:
    return data_folder() / "images"


def decoded(
    source: Source, numbers: list[int], decoding: Decoding, progress: Progress, text: str, refuse: Refuse
) -> DecodedImages:
    """These images of a source from the cache; if they are not there, or damaged, every one is decoded first.

    `refuse` hears of each file that cannot be used, as soon as that is known.
    """
    settings = json.dumps({"format": FORMAT, "decoding": asdict(decoding)})
    known = cache_folder() / "known" / _digest(settings, *source.stamps(numbers))
    if known.exists():
        key = known.read_text(encoding="ascii", errors="replace")
        cached = _load(cache_folder() / key) if re.fullmatch("[0-9a-f]{32}", key) else None
        if cached is not None and len(cached.outcomes) == len(numbers):
            for number, outcome in zip(numbers, cached.outcomes, strict=True):
                if outcome.refused:
                    refuse(number, outcome.refused)
            return cached
        text = f"{text} again, the cache was damaged or of another version"
    work = _Work(source=source, numbers=numbers, decoding=decoding, progress=progress, text=text, refuse=refuse)
    cached = _make(work, settings)
    if not any(outcome.refused.startswith(UNREADABLE) for outcome in cached.outcomes):  # else try again next time
        make_folder(known.parent)
        write_atomically(known, cached.folder.name)
    return cached


def clean(*, remove: bool = True) -> tuple[int, int]:
    """(sets, bytes) of decoded images in the cache, which are removed; a run that reads them continues undisturbed."""
    folder = cache_folder()
    if not folder.is_dir():
        return 0, 0
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    sets = sum((path / "index.json").is_file() for path in folder.iterdir())
    if remove:
        shutil.rmtree(folder)
    return sets, size


def _digest(*texts: str) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest()[:32]


def _load(folder: Path) -> DecodedImages | None:
    """A set that is whole; None for one that is damaged or not there."""
    try:
        content = json.loads(read_signed(folder / "index.json"))
        names = [field.name for field in fields(Outcome)]
        outcomes = [Outcome(**dict(zip(names, row, strict=True))) for row in content["outcomes"]]
        cached = DecodedImages(folder, tuple(content["shape"]), content["fingerprint"], outcomes)
        return cached if _is_whole(cached) else None
    except (DamagedError, OSError, ValueError, TypeError, KeyError):
        return None


def _is_whole(cached: DecodedImages) -> bool:
    """By size and times of the file; where these are not as they were, by its checksum, which reads all of it."""
    checked = cached.folder / "checked"
    if cached.pixels_path.stat().st_size != cached.num_bytes:
        return False
    if checked.exists() and checked.read_text(encoding="ascii", errors="replace") == _times(cached.pixels_path):
        return True
    if fingerprint(replace(cached, fingerprint="").images()) != cached.fingerprint:
        return False
    with suppress(OSError):  # a shared cache may be read only
        write_atomically(checked, _times(cached.pixels_path))
    return True


def _times(path: Path) -> str:
    about = path.stat()
    return f"{about.st_size} {about.st_mtime_ns} {about.st_ctime_ns}"


@dataclass(frozen=True, kw_only=True)
class _Work:
    """What is to be decoded, and who hears how it goes."""

    source: Source
    numbers: list[int]
    decoding: Decoding
    progress: Progress
    text: str
    refuse: Refuse


def _make(work: _Work, settings: str) -> DecodedImages:
    """Decodes into a folder of its own, which gets its name when it is whole: a kill leaves nothing half."""
    root, decoding = cache_folder(), work.decoding
    make_folder(root)
    _remove_abandoned(root)
    _check_space(root, len(work.numbers) * decoding.channels * decoding.image_size**2)
    unfinished = Path(tempfile.mkdtemp(dir=root, prefix="unfinished-"))
    try:
        outcomes = _decode_all(work, unfinished / "pixels.bin")
        shape = (sum(not one.refused for one in outcomes), decoding.channels, decoding.image_size, decoding.image_size)
        made = DecodedImages(unfinished, shape, "", outcomes)
        content = {
            "settings": json.loads(settings),
            "shape": shape,
            "fingerprint": fingerprint(made.images(), work.progress),
            "outcomes": [list(asdict(one).values()) for one in outcomes],
        }
        write_atomically(unfinished / "index.json", signed_json(json.dumps(content, indent=0)))
        write_atomically(unfinished / "checked", _times(made.pixels_path))
        unfinished.chmod(stat.S_IMODE(root.stat().st_mode))  # as shared as its root: mkdtemp's are their owner's alone
        return _named(unfinished, root / _digest(settings, *(one.sha256 or one.refused for one in outcomes)))
    except OSError as error:
        free = shutil.disk_usage(root).free
        raise FedsslError(
            f"{root}: the decoded images cannot be written ({error.strerror}; {free:,} bytes free): free space there "
            "with `fedssl data clean` or name another folder in FEDSSL_DATA"
        ) from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _named(unfinished: Path, final: Path) -> DecodedImages:
    """The set under its name; one that is there already is as good, unless it is damaged."""
    if _load(final) is None:
        shutil.rmtree(final, ignore_errors=True)
        try:
            unfinished.rename(final)
        except OSError:
            if not final.is_dir():  # else another run was quicker
                raise
    cached = _load(final)
    if cached is None:
        raise FedsslError(f"{final}: cannot be read back after it was written: is the disk sound?")
    return cached


def _remove_abandoned(root: Path) -> None:
    for path in root.glob("unfinished-*"):
        last = max((one.stat().st_mtime for one in (path, *path.glob("*")) if one.exists()), default=0.0)
        if time.time() - last > ABANDONED:
            shutil.rmtree(path, ignore_errors=True)


def _check_space(root: Path, needed: int) -> None:
    free = shutil.disk_usage(root).free
    if needed > free:
        raise FedsslError(
            f"{root}: the decoded images need {needed:,} bytes and {free:,} are free: free space there with "
            "`fedssl data clean`, name another folder in FEDSSL_DATA, or lower data.image_size"
        )


def _decode_all(work: _Work, path: Path) -> list[Outcome]:
    """Writes the pixels of every image that can be used, in order, and says what became of each."""
    outcomes: list[Outcome] = []
    with path.open("wb") as file:
        work.progress(work.text, 0, len(work.numbers))
        for number, result in zip(work.numbers, pictures(work.source, work.numbers, work.decoding), strict=True):
            if isinstance(result, Picture):
                file.write(result.pixels.data)
                facts = {name: getattr(result, name) for name in ("sha256", "width", "height", "kind")}
                outcomes.append(Outcome(**facts))
            else:
                outcomes.append(Outcome(refused=result))
                work.refuse(number, result)
            work.progress(work.text, len(outcomes), len(work.numbers))
        file.flush()
        os.fsync(file.fileno())
    return outcomes


def pictures(source: Source, numbers: Sequence[int], decoding: Decoding) -> Iterator[Picture | str]:
    """A picture, or why there is none, for each number in order; PIL lets threads decode at the same time."""
    threads = min(os.cpu_count() or 1, MOST_THREADS)
    pending: deque[Future[Picture | str]] = deque()
    with warnings.catch_warnings(), source.opened() as read, ThreadPoolExecutor(threads, "decoder") as pool:
        # On odd EXIF data and the like, which do no harm; what pydicom says may quote a file.
        warnings.filterwarnings("ignore", module=r"PIL|pydicom|fedssl\.data\.own\.dicom")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            for number in numbers:
                pending.append(pool.submit(_decode, read, number, decoding))
                if len(pending) >= AHEAD * threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _decode(read: Read, number: int, decoding: Decoding) -> Picture | str:
    try:
        image = read(number)
        if isinstance(image, np.ndarray):
            return decode_array(image, decoding)
        with image:
            return decode_file(image, decoding)
    except RefusedError as error:
        return str(error)
    except OSError as error:  # the file was found, but not to its end: a bad disk, a network that is gone
        return str(UnreadableError(error))
