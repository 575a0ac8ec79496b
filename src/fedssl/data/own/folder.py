"""Folders of images: one for all, or silos, whose first-level subfolders are the clients; never left, never changed."""

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from fedssl.data.dataset import Refusal
from fedssl.data.own.decoding import ENDINGS, OTHERS, RefusedError, UnreadableError, not_read
from fedssl.data.own.found import Found, Read, Sample, by_number, printable, shortened

# NONBLOCK: a pipe that took the file's place after it was found must not make us wait for a writer.
# NOFOLLOW: nor may a link that did lead us out of the folder.
OPENING = os.O_RDONLY
for flag in ("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "O_BINARY"):
    OPENING |= getattr(os, flag, 0)
SITE = re.compile(r"(site|silo|client|hospital|clinic|cent(re|er)|node)s?[ _-]?[0-9a-z]{0,3}", re.I)
SILOS = "data.layout = silos takes them as clients, and as classes the folders in them"


@dataclass(frozen=True)
class Files:
    """A source of image files."""

    paths: list[str]

    def stamps(self, numbers: list[int]) -> Iterator[str]:
        for number in numbers:
            path = self.paths[number]
            try:
                status = os.stat(path)  # noqa: PTH116 - a Path cannot hold every name, and 100,000 of them are slow
            except (OSError, ValueError) as error:
                yield f"{path!r} {type(error).__name__}"
                continue
            # ctime: nobody can set it back, unlike mtime.
            yield f"{path!r} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"

    @contextmanager
    def opened(self) -> Iterator[Read]:
        yield lambda number: open_image(self.paths[number])


def open_image(path: str) -> BufferedReader:
    """A regular file, opened for reading; anything else is refused without waiting for it."""
    try:
        descriptor = os.open(path, OPENING)
    except (OSError, ValueError) as error:
        raise UnreadableError(error) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise RefusedError("no regular file")
    return os.fdopen(descriptor, "rb")


def find_in_folder(
    place: str | Path, _columns: Mapping[str, str] | None = None, labels: bool = True, *, silos: bool = False
) -> Found:
    """Every image below a folder; of silos, the first-level subfolder is the client and the next one may be the class.

    Subfolders name classes when all images are in one and there are two or more. Hidden files are passed over.
    """
    root = Path(place)
    files, refused = _walk(os.path.realpath(root))
    clients: list[str] = []
    if silos:
        clients = _silos(root)
        refused += [
            Refusal(printable(path), "in no silo: silos are subfolders") for path in files if os.sep not in path
        ]
        refused = [Refusal(one.file, one.reason, _silo_of(one.file, clients)) for one in refused]
        files = {path: real for path, real in files.items() if os.sep in path}
    folders = [path.split(os.sep)[:-1] for path in files]  # noqa: PTH206 - a Path of each would be slow
    named, remarks = _classes(list(files), [folder[1:] if silos else folder for folder in folders])
    if not silos and any(named) and (sites := look_like_sites(folders)):
        remarks = (*remarks, sites)
    samples = [
        Sample(printable(path), printable(folder[0]) if silos else None, label if labels else None)
        for path, folder, label in zip(files, folders, named, strict=True)
    ]
    remarks, source = remarks if labels else (), Files(list(files.values()))
    return Found(printable(root), samples, source, refused=refused, clients=tuple(clients), remarks=remarks)


def _walk(root: str) -> tuple[dict[str, str], list[Refusal]]:
    """(relative path -> real path of image files, what was refused), sorted; links lead to files inside or nowhere."""
    files, refused, folders = {}, [], [""]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(f"{root}{os.sep}{folder}") as entries:
                inside = [entry for entry in entries if not entry.name.startswith(".")]
        except OSError as error:
            refused.append(Refusal(printable(folder) + os.sep, f"folder cannot be read: {error.strerror}"))
            continue
        for entry in inside:
            path = f"{folder}{os.sep}{entry.name}" if folder else entry.name
            if _is_folder(entry) and not entry.is_symlink():
                folders.append(path)
                continue
            reason = _why_not(entry, root)
            if reason:
                refused.append(Refusal(printable(path), reason))
            else:
                files[path] = os.path.realpath(entry.path) if entry.is_symlink() else f"{root}{os.sep}{path}"
    return {path: files[path] for path in sorted(files, key=os.fsencode)}, sorted(refused, key=lambda one: one.file)


def _why_not(entry: os.DirEntry[str], root: str) -> str:
    """The reason to leave a file alone, from its name and kind; "" for an image to be opened."""
    try:
        if entry.is_symlink():
            if os.path.commonpath([root, os.path.realpath(entry.path)]) != root:
                return "a link that leaves the folder"
            if entry.is_dir():
                return "a link to a folder"
        if not stat.S_ISREG(entry.stat().st_mode):
            return "no regular file"
    except FileNotFoundError:
        return "a link to nothing"
    except OSError as error:
        return f"cannot be looked at: {error.strerror}"
    ending = os.path.splitext(entry.name)[1].lower()  # noqa: PTH122 - as above
    if ending in OTHERS:
        return not_read(ending[1:].upper())
    return "" if ending in ENDINGS else "its name has no ending of an image"


def _silos(root: Path) -> list[str]:
    """Names of the clients; a link to a folder is one too, so that a client that is out of reach is not forgotten."""
    try:
        with os.scandir(root) as entries:
            names = [printable(entry.name) for entry in entries if not entry.name.startswith(".") and _is_folder(entry)]
    except OSError:  # the walk has refused the folder, with the reason
        return []
    return sorted(names, key=by_number)


def _silo_of(file: str, clients: list[str]) -> str:
    first = file.partition(os.sep)[0]
    return first if first in clients else ""


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _classes(paths: list[str], folders: list[list[str]]) -> tuple[list[str | None], tuple[str, ...]]:
    """The class of each image by the first of its folders, where that can be meant; a remark where it is half so."""
    unknown: list[str | None] = [None] * len(folders)
    without = [path for path, folder in zip(paths, folders, strict=True) if not folder]
    if len(without) == len(folders):
        return unknown, ()
    if without:
        which = f"{len(without):,} of {len(folders):,} images, first {shortened(printable(without[0]))},"
        return unknown, (f"{which} are in no class folder: so no image has a class",)
    several = len({folder[0] for folder in folders}) > 1
    return [printable(folder[0]) for folder in folders] if several else unknown, ()


def look_like_sites(folders: Sequence[Sequence[str]]) -> str:
    """A remark where the first of the folders are sites, by their names or as each has the same folders in it."""
    inside: dict[str, set[str]] = {}
    for first, *rest in folders:
        inside.setdefault(first, set()).update(rest[:1])
    same = set.intersection(*inside.values()) if inside else set()
    if len(inside) < 2 or not (same or all(SITE.fullmatch(name) for name in inside)):
        return ""
    why = f"each has a folder {shortened(printable(min(same)), 40)}" if same else "by their names"
    named = ", ".join(shortened(printable(name), 40) for name in sorted(inside)[:3])
    return f"the folders {named}{' …' if len(inside) > 3 else ''} look like sites, not classes ({why}): {SILOS}"
