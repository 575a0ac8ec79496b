"""Files that are whole or not there: written under another name, flushed to the disk, then renamed."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedssl.core.errors import FedsslError, StorageError

Place = str | os.PathLike[str]  # of a file or folder, as a caller may name it

UNFINISHED = ".unfinished"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name to write to; it becomes `path` when the block ends, and disappears when the block fails."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}{UNFINISHED}")
    with storing(path):
        try:
            yield unfinished
            sync(unfinished)
            unfinished.replace(path)
            sync(path.parent)
        finally:
            unfinished.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill; it becomes `path` when the block ends, and disappears when the block fails.

    One that holds something is refused: nothing of a user's is ever deleted.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FedsslError(f"{path}: exists and is not empty: choose another folder with -o")
    unfinished = path.with_name(f"{path.name}.{os.getpid()}{UNFINISHED}")
    with storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.mkdir()
        try:
            yield unfinished
            for file in unfinished.iterdir():
                sync(file)
            sync(unfinished)
            unfinished.replace(path)
            sync(path.parent)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def write_atomically(path: Path, text: str) -> None:
    with replacing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def append_line(path: Path, line: str) -> None:
    """One line more, on the disk when this returns; a kill in between leaves at most a torn last line."""
    with storing(path, len(line)), path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Flushes a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def forget(path: Path) -> None:
    """Lets the system use the memory in which it holds a file, for one that is not read unless something goes wrong.

    Else every new file takes memory that is new to the system, which costs more than writing to it.
    """
    if not hasattr(os, "posix_fadvise"):  # macOS, Windows
        return
    with suppress(OSError), path.open("rb") as file:  # advice: no harm where it cannot be given
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def remove_folder(folder: Path) -> None:
    """Takes the name away first: a kill in between leaves rubbish that `sweep` finds, never half a folder."""
    rubbish = folder.with_name(f"{folder.name}.{os.getpid()}.removed{UNFINISHED}")
    with storing(folder):
        folder.replace(rubbish)
        shutil.rmtree(rubbish)


def move_aside(path: Path) -> Path:
    """Gives what is damaged another name, `damaged-NAME-1`: somebody may want to look at it, nobody to use it."""
    number = 1
    while (aside := path.with_name(f"damaged-{path.name}-{number}")).exists():
        number += 1
    with storing(path):
        path.replace(aside)
    return aside


def sweep(folder: Path) -> None:
    """Removes what a killed process left unfinished anywhere below; only for who holds the folder's lock."""
    with storing(folder):
        for rubbish in folder.rglob(f"*{UNFINISHED}"):
            if rubbish.is_dir():
                shutil.rmtree(rubbish)
            else:
                rubbish.unlink(missing_ok=True)


@contextmanager
def storing(path: Path, needed: int = 0) -> Iterator[None]:
    """What the disk refuses inside the block becomes one line with the path, the bytes needed and the bytes free."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {_reason(error, path, needed)}") from None


def _reason(error: OSError, path: Path, needed: int) -> str:
    text = error.strerror or str(error)
    if error.errno not in _FULL:
        return f"{text}; what was saved before is intact: run the same command again when the folder can be written"
    wanted = f"{size_text(needed)} needed, " if needed else ""
    return (
        f"{text} ({wanted}{size_text(free_bytes(path))} free); what was saved before is intact: "
        "make room and run the same command again"
    )


def free_bytes(path: Path) -> int:
    """Free space where `path` is, or will be."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free


def bytes_in(folder: Path) -> int:
    """All files below a folder, which others may write to and delete from meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # it may be gone by now
            total += path.stat().st_size if path.is_file() else 0
    return total


def size_text(count: float) -> str:
    """A number of bytes in the unit that reads best (decimal: 1 MB is a million bytes)."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"
