"""What is reported while something takes time: how far it is, and sentences."""

from collections.abc import Callable
from typing import Protocol

Say = Callable[[str], None]
"""Called with a sentence for a person to read."""


class Progress(Protocol):
    def __call__(self, text: str, done: int, total: int | None, client: int | None = None, images: int = 0) -> None:
        """`done` bytes, images or steps of `total` (None: not known) of what `text` says.

        While a client trains, which one it is and how many images it has seen: counts only, nothing waits for a GPU.
        """


def silent(text: str, done: int, total: int | None, client: int | None = None, images: int = 0) -> None:
    """Progress that nobody watches."""


def say_nothing(text: str) -> None:
    """`Say` where nobody reads."""
