"""How a file shows that it is as it was written: by its own last line, or by a size and a checksum kept elsewhere.

Older versions wrote neither: what nobody vouches for is read as it is.
"""

import hashlib
import os
from pathlib import Path
from typing import Any

from fedssl.core.errors import DamagedError
from fedssl.core.files import append_line, storing

Seal = dict[str, Any]  # bytes and sha256 of a file; one of lines may have grown since
Seals = dict[str, Seal | None]  # by the names of files in a folder; None: the last line of the file is its checksum
ALTERED = "damaged, its checksum is not the one that was written"
_CHUNK = 1 << 20  # bytes that are read together
_GROWING = (".jsonl", ".csv")
_LAST_LINE = {".json": (' "sha256": "', '"\n}\n'), ".toml": ("# sha256 of all above: ", "\n")}


def signed(above: str, kind: str) -> str:
    """A text whose last line is the checksum of all that stands above it."""
    before, after = _LAST_LINE[kind]
    return f"{above}{before}{hashlib.sha256(above.encode()).hexdigest()}{after}"


def signed_json(text: str) -> str:
    """A JSON object of several lines, with the checksum as its last entry."""
    return signed(text.removesuffix("\n}") + ",\n", ".json")


def read_signed(path: Path, *, must: bool = True) -> str:
    """The text of a file whose last line is right; a file of an older version has none, unless it `must`."""
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise DamagedError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise DamagedError(f"{path}: damaged, not UTF-8") from None
    length = len(signed("", path.suffix))
    if text != signed(text[:-length], path.suffix) and (must or _LAST_LINE[path.suffix][0] in text[-length:]):
        raise DamagedError(f"{path}: {ALTERED}")
    return text


def measure(path: Path, most: int | None = None) -> Seal:
    """Size and checksum of a file, or of its first bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size if most is None else min(most, os.fstat(file.fileno()).st_size)
        left = size
        while chunk := file.read(min(left, _CHUNK)):
            digest.update(chunk)
            left -= len(chunk)
    return {"bytes": size, "sha256": digest.hexdigest()}


def problem_of(path: Path, seal: Seal | None) -> str:
    """Why a file is not what its seal says; empty when it is."""
    try:
        if seal is None:
            read_signed(path)
            return ""
        actual = measure(path, seal["bytes"] if path.suffix in _GROWING else None)
    except DamagedError as error:
        return str(error).removeprefix(f"{path}: ")
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if actual["bytes"] != seal["bytes"]:
        return f"damaged, {actual['bytes']} bytes instead of {seal['bytes']}"
    return "" if actual == seal else ALTERED


def problems_in(folder: Path, seals: Seals) -> dict[str, str]:
    """What is wrong with the files of a folder, by their names."""
    return {name: problem for name, seal in seals.items() if (problem := problem_of(folder / name, seal))}


class GrowingFile:
    """A file of lines, and the seal of all that was written to it, whatever has become of it on the disk."""

    def __init__(self, path: Path) -> None:
        content = path.read_bytes() if path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:  # a kill left a torn last line
            with storing(path):
                os.truncate(path, len(whole))
        self.path, self.size, self._digest = path, len(whole), hashlib.sha256(whole)

    def append(self, lines: str) -> None:
        append_line(self.path, lines)
        self.size += len(lines.encode()) + 1
        self._digest.update(lines.encode() + b"\n")

    def seal(self) -> Seal:
        return {"bytes": self.size, "sha256": self._digest.hexdigest()}
