"""What is told while something takes time: how far it is, and sentences."""

from collections.abc import Callable
from typing import Protocol

Say = Callable[[str], None]
"""Called with a sentence for a person to read."""


class Progress(Protocol):
    def __call__(self, text: str, done: int, total: int | None) -> None:
        """`done` bytes or images of `total` (None: not known) of what `text` says."""


def silent(text: str, done: int, total: int | None) -> None:
    """Progress that nobody watches."""


def unheard(text: str) -> None:
    """What nobody reads."""
