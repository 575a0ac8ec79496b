"""Files of lines, one JSON object each as a rule: read at once, or followed while they grow."""

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedssl.core.errors import FedsslError


def read_table(line: bytes) -> dict[str, Any]:
    """The JSON object that a line holds; ValueError where it holds none."""
    content = json.loads(line)
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    return content


def whole_tables(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    """The JSON objects of those lines that hold one: a full disk or a kill may have left half of a line."""
    tables = []
    for line in lines:
        with contextlib.suppress(ValueError):
            tables.append(read_table(line))
    return tables


def read_lines(path: Path, *, torn: bool = False, size: int | None = None) -> list[dict[str, Any]]:
    """The JSON objects in the first `size` bytes of a .jsonl file; of a `torn` one those lines that are whole."""
    try:
        lines = path.read_bytes()[:size].splitlines()
    except OSError as error:
        raise FedsslError(f"{path}: cannot be read ({error})") from None
    if torn:
        return whole_tables(lines)
    tables = []
    for number, line in enumerate(lines, start=1):
        try:
            tables.append(read_table(line))
        except ValueError as error:
            raise FedsslError(f"{path}, line {number}: damaged ({error}): remove the line or run again") from None
    return tables


class Tail:
    """The whole lines of a file that grows: each is given once, all anew when the file was cut back or replaced."""

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self.path, self.anew = path, False  # anew: what `new` gave last begins at the file's first line
        self._inode, self._read = 0, 0
        if from_end:
            with contextlib.suppress(OSError):
                status = path.stat()
                self._inode, self._read = status.st_ino, status.st_size

    def new(self) -> list[bytes]:
        """Those that were written since; the rest of the file may still be being written."""
        try:
            with self.path.open("rb") as file:
                status = self.path.stat()
                self.anew = status.st_ino != self._inode or status.st_size < self._read
                self._inode, self._read = status.st_ino, 0 if self.anew else self._read
                file.seek(self._read)
                text = file.read()
        except OSError:  # it is not there, or not any more
            self.anew, self._inode, self._read = True, 0, 0
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.splitlines()
