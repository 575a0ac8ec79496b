"""What a layout finds, before anything is decoded: images by number, whose they are and what they show."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from fedssl.data.dataset import Refusal
from fedssl.data.own.decoding import AnyArray, ImageFile

Part = Literal["train", "eval_train", "eval_test"]
Read = Callable[[int], ImageFile | AnyArray]
"""The image of a number: an open file or a row of an array; called by several threads at once."""


@dataclass(frozen=True)
class Sample:
    """One image: its name for people, and what the data say about it."""

    name: str
    client: str | None = None
    label: str | None = None
    part: Part = "train"


class Source(Protocol):
    """Where the images of the samples are read from, by the number of the sample; nothing is ever written there."""

    def stamps(self, numbers: list[int]) -> Iterator[str]:
        """Texts that are others as soon as one of these images may be another; found without reading them."""

    def opened(self) -> AbstractContextManager[Read]:
        """Ready to be read."""


@dataclass(frozen=True)
class Found:
    """All that a layout found at one place."""

    place: str
    samples: list[Sample]
    source: Source
    _: KW_ONLY
    refused: list[Refusal] = field(default_factory=list)
    clients: tuple[str, ...] = ()  # every client that the data name, also one without images
    remarks: tuple[str, ...] = ()


def printable(name: str | Path) -> str:
    """A file's name for screens, logs and JSON: bytes that are no UTF-8 and control characters are written out."""
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shortened(name: str, most: int = 120) -> str:
    """A long name with its middle left out, for messages."""
    return name if len(name) <= most else f"{name[: most // 2]}…{name[-most // 2 :]}"


def by_number(name: str) -> list[tuple[int, int, str]]:
    """A sorting key: "site2" before "site10"."""
    pieces = re.findall(r"([0-9]+)|([^0-9]+)", name)
    return [(0, int(digits), "") if digits else (1, 0, text) for digits, text in pieces]
